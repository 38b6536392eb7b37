"""kill -9 at every step of every change: afterwards the store is as before or as after, whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from made_manifests import MODES, made
from made_models import write_tiny

from manifests.create import create, pull_local
from manifests.manifest import Manifest
from manifests.modelfile import parse_modelfile
from manifests.names import ModelName, parse_name
from manifests.store import Store

NAME = parse_name("a/b:c")
OTHER = parse_name("other")
# The calls by which the store changes the disk.
STEPS = ("fsync", "replace", "unlink", "mkdir", "rmdir")
MOST_STEPS = 60


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_at(step: int, *, after: bool) -> None:
    """Make this process die before or after its step-th change."""
    left = [step]

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                _die()
            result = call(*args, **kwargs)
            if left[0] == 0:
                _die()
            return result

        return counted

    for name in STEPS:
        setattr(os, name, counting(getattr(os, name)))


def _finishes(action: Callable[[], object], step: int, *, after: bool) -> bool:
    """Run the action in a child that dies at the step; whether it ended before that."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _kill_at(step, after=after)
            action()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL)
    return status == 0


def _state(root: Path) -> dict[str, Manifest]:
    """All models, without the times at which they were written."""
    store = Store(root)
    moments = made().model_dump(include={"created_at", "modified_at"})
    return {str(name): store.get(name).model_copy(update=moments) for name in store.names()}


def _leftovers(root: Path) -> list[Path]:
    return list(root.rglob(".tmp-*"))


Change = Callable[[Store, Path], object]


def _edit(store: Store, _: Path) -> object:
    return store.edit(NAME, lambda m: m.model_copy(update={"system": "new"}))


def _put(store: Store, _: Path) -> object:
    store.put(ModelName("new/deep/name", "t"), made(system="new"))
    return None


def _copy(store: Store, _: Path) -> object:
    store.copy(NAME, ModelName("copied/to"))
    return None


def _delete(store: Store, _: Path) -> object:
    store.delete(NAME)
    return None


def _pull(store: Store, source: Path) -> object:
    return pull_local(store, ModelName("pulled"), source)


def _create(store: Store, source: Path) -> object:
    modelfile = parse_modelfile(f"FROM {source}\nSYSTEM new")
    return create(store, NAME, modelfile, Path("/"), MODES)


@pytest.mark.parametrize("change", [_edit, _put, _copy, _delete, _pull, _create])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_step(tmp_path: Path, change: Change, after: bool) -> None:
    kept = write_tiny(tmp_path / "kept.gguf", seed=1)
    source = write_tiny(tmp_path / "source.gguf", seed=2)
    reference = _reference(tmp_path, kept, source, change)
    for step in range(1, MOST_STEPS):
        root = tmp_path / f"home{step}"
        store = Store(root)
        pull_local(store, OTHER, kept)
        store.put(NAME, made(system="old"))
        old = _state(root)
        finished = _finishes(partial(change, store, source), step, after=after)
        new = _state(root)
        assert _leftovers(root) == []
        _check_blobs(root)
        assert new[str(OTHER)] == old[str(OTHER)]
        if finished:
            assert new != old
            break
        assert new in (old, reference)
    assert step > 2, "the change has steps to be killed at"
    assert finished


def _reference(tmp_path: Path, kept: Path, source: Path, change: Change) -> dict[str, Manifest]:
    root = tmp_path / "reference"
    store = Store(root)
    pull_local(store, OTHER, kept)
    store.put(NAME, made(system="old"))
    change(store, source)
    return _state(root)


def _check_blobs(root: Path) -> None:
    """Every blob that a model names is whole, but those that made() makes up; no other is."""
    store = Store(root)
    named = {blob.digest: blob.size for name in store.names() for blob in store.get(name).blobs}
    found = {path.name: path.stat().st_size for path in (root / "blobs").iterdir()}
    made_up = made().blobs[0].digest
    assert found == {digest: size for digest, size in named.items() if digest != made_up}
