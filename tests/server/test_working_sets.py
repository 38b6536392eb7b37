"""Working sets on disk: found again, bounded, and never a reason to refuse a load."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from made_calls import made_spec

from server import working_sets
from server.calls import ModelSpec
from server.protocol import FileRuns, WorkingSet
from server.working_sets import WorkingSets

FILES: FileRuns = [[(0, 4096), (8192, 1 << 40)], []]
FOUND = WorkingSet("lazy", FILES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "working-sets"


@pytest.fixture
def kept(folder: Path) -> Iterator[WorkingSets]:
    sets = WorkingSets(folder)
    yield sets
    sets.close()


def stored(tmp_path: Path, letter: str = "a", residency: str = "lazy") -> ModelSpec:
    """A model whose file is there."""
    blob = tmp_path / f"sha256-{letter * 64}"
    blob.touch()
    return made_spec(identity=blob.name, path=str(blob), residency=residency)


def keep(sets: WorkingSets, spec: ModelSpec, found: WorkingSet) -> None:
    asyncio.run(sets.keep(spec, found))


def recall(sets: WorkingSets, spec: ModelSpec) -> FileRuns:
    return asyncio.run(sets.recall(spec))


def test_a_set_is_found_again_by_another_daemon(
    kept: WorkingSets, folder: Path, tmp_path: Path
) -> None:
    spec = stored(tmp_path)
    keep(kept, spec, FOUND)
    again = WorkingSets(folder)
    assert recall(again, spec) == FILES
    again.close()
    assert [path.name for path in folder.iterdir()] == [f"{spec.identity}.lazy.msgpack"]


async def test_a_load_that_follows_at_once_finds_what_the_unload_keeps(
    kept: WorkingSets, tmp_path: Path
) -> None:
    spec = stored(tmp_path)
    for n in range(20):
        files = [[(0, 4096 * (n + 1))]]
        _, found = await asyncio.gather(
            kept.keep(spec, WorkingSet("lazy", files)), kept.recall(spec)
        )
        assert found == files


def test_each_mode_has_its_own_and_those_that_read_all_none(
    kept: WorkingSets, tmp_path: Path
) -> None:
    keep(kept, stored(tmp_path), FOUND)
    keep(kept, stored(tmp_path), WorkingSet("eager", FILES))
    for mode in ("lazy_then_pin_resident", "eager", "pinned", "resident"):
        assert recall(kept, stored(tmp_path, residency=mode)) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"identity": 7}),
        msgspec.msgpack.encode({"identity": "x", "files": [[(0, "end")]]}),
        b"\x00" * (2 << 20),
    ],
    ids=["empty", "no msgpack", "no files", "no offset", "huge"],
)
def test_a_damaged_file_is_one_warning_and_no_set(
    kept: WorkingSets,
    folder: Path,
    tmp_path: Path,
    content: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = stored(tmp_path)
    keep(kept, spec, FOUND)
    (path,) = folder.iterdir()
    path.write_bytes(content)
    assert recall(kept, spec) == []
    (warning,) = (r for r in caplog.records if r.levelname == "WARNING")
    assert str(path) in warning.getMessage() and spec.name in warning.getMessage()
    keep(kept, spec, FOUND)
    assert recall(kept, spec) == FILES


def test_a_file_cut_off_anywhere_is_no_set(kept: WorkingSets, folder: Path, tmp_path: Path) -> None:
    spec = stored(tmp_path)
    keep(kept, spec, FOUND)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert recall(kept, spec) == []


def test_a_set_of_other_weights_is_passed_over(
    kept: WorkingSets, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = stored(tmp_path)
    keep(kept, spec, FOUND)
    other = dataclasses.replace(spec, identity=f"{spec.identity} sha256-{'b' * 64}")
    assert recall(kept, other) == []
    assert "it is of other weights" in caplog.text


def test_what_cannot_be_written_is_a_warning(
    kept: WorkingSets, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.touch()
    keep(kept, stored(tmp_path), FOUND)
    assert recall(kept, stored(tmp_path)) == []
    assert "its working set is not kept" in caplog.text


def test_nothing_is_kept_of_a_model_that_was_deleted_while_it_was_loaded(
    kept: WorkingSets, folder: Path, tmp_path: Path
) -> None:
    spec = stored(tmp_path)
    Path(spec.load.paths[0]).unlink()
    keep(kept, spec, FOUND)
    assert not folder.exists()


def test_the_oldest_go_and_what_a_killed_daemon_left(
    kept: WorkingSets, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_sets, "MAX_FILES", 3)
    for age, letter in enumerate("dcba"):
        keep(kept, stored(tmp_path, letter), FOUND)
        os.utime(folder / f"sha256-{letter * 64}.lazy.msgpack", (age, age))
    (folder / ".tmp-0123").touch()
    keep(kept, stored(tmp_path, "d"), FOUND)
    assert sorted(path.name[7:8] for path in folder.iterdir()) == ["a", "b", "d"]
