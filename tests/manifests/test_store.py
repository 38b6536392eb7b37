"""The store: what it keeps, what it removes, and races between its users."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from made_manifests import THEN, layered, made

from manifests.errors import InvalidManifest, InvalidValue, ModelMissing, StoreError, StoreFull
from manifests.manifest import Blob, Manifest, Parameters, write_manifest
from manifests.names import ModelName, parse_name
from manifests.store import Store

NAME = parse_name("some/model:q4")
OTHER = parse_name("other")
LATER = THEN + timedelta(days=1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home", now=lambda: LATER)


def _seed(value: int) -> Callable[[Manifest], Manifest]:
    return lambda manifest: manifest.model_copy(update={"parameters": Parameters(seed=value)})


def test_put_and_get(store: Store) -> None:
    store.put(NAME, layered())
    assert store.get(NAME) == layered()
    assert store.names() == [NAME]
    assert (store.root / "manifests/some/model/q4.json").is_file()


def test_another_store_on_the_root_sees_it(store: Store) -> None:
    store.put(NAME, layered())
    assert Store(store.root).get(NAME) == layered()


def test_names_are_sorted_and_only_models(store: Store) -> None:
    for text in ("b", "a:x", "a:latest", "hf.co/o/r:Q"):
        store.put(parse_name(text), made())
    (store.root / "manifests" / "stray.json").write_text("{}")
    (store.root / "manifests" / "b" / "notes.txt").write_text("x")
    (store.root / "manifests" / "b" / ".tmp-0").write_text("x")
    assert [str(name) for name in store.names()] == ["a:latest", "a:x", "b:latest", "hf.co/o/r:Q"]


def test_missing(store: Store) -> None:
    store.put(OTHER, made())
    for call in (store.get, store.delete, lambda n: store.copy(n, OTHER)):
        with pytest.raises(ModelMissing, match="model 'some/model:q4' not found"):
            call(NAME)
    with pytest.raises(ModelMissing):
        store.edit(NAME, lambda manifest: manifest)
    # A folder of this name would have to stand where other's manifest does.
    with pytest.raises(ModelMissing):
        store.get(ModelName("other/latest", "x"))


def test_edit_stores_and_stamps(store: Store) -> None:
    store.put(NAME, layered())
    after = store.edit(NAME, _seed(5))
    assert after == store.get(NAME)
    assert after == _seed(5)(layered()).model_copy(update={"modified_at": LATER})


def test_an_edit_that_raises_or_changes_nothing_writes_nothing(store: Store) -> None:
    store.put(NAME, layered())
    assert store.edit(NAME, lambda manifest: manifest).modified_at == THEN

    def fail(_: Manifest) -> Manifest:
        raise InvalidValue("x", "y")

    with pytest.raises(InvalidValue):
        store.edit(NAME, fail)
    assert store.get(NAME) == layered()


def test_a_manifest_too_large_to_be_read_is_not_written(store: Store) -> None:
    store.put(NAME, layered())
    with pytest.raises(InvalidValue, match="at most 16,777,216"):
        store.edit(NAME, lambda m: m.model_copy(update={"system": "x" * (16 << 20)}))
    assert store.get(NAME) == layered()


def test_copy(store: Store) -> None:
    store.put(NAME, layered())
    store.copy(NAME, OTHER)
    assert store.get(OTHER) == layered().model_copy(update={"modified_at": LATER})
    assert store.get(NAME) == layered()


def test_a_broken_manifest_is_listed_and_affects_itself_alone(store: Store) -> None:
    store.put(NAME, layered())
    store.put(OTHER, made())
    (store.root / "manifests/other/latest.json").write_text('{"blobs":')
    assert store.names() == [OTHER, NAME]
    assert store.get(NAME) == layered()
    with pytest.raises(InvalidManifest, match=r"other/latest\.json: is not JSON"):
        store.get(OTHER)
    with pytest.raises(InvalidManifest):
        store.edit(OTHER, lambda manifest: manifest)
    store.delete(OTHER)
    assert store.names() == [NAME]


def test_a_folder_that_goes_while_names_are_read_is_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(NAME, made())
    store.put(OTHER, made())
    scandir = os.scandir

    def racing(folder: str) -> object:
        if Path(folder) == gone and gone.exists():
            (gone / "q4.json").unlink()
            gone.rmdir()
        return scandir(folder)

    gone = store.root / "manifests/some/model"
    assert store.names() == [OTHER, NAME]
    monkeypatch.setattr("os.scandir", racing)
    assert store.names() == [OTHER]


def test_a_write_that_fails_leaves_no_folder(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store.put(parse_name("some/neighbour"), made())
    monkeypatch.setattr("manifests.store.write_file", refuse)
    with pytest.raises(StoreFull):
        store.put(NAME, made())
    assert [path.name for path in (store.root / "manifests/some").iterdir()] == ["neighbour"]
    monkeypatch.setattr("manifests.durable.sync_folder", refuse)
    with pytest.raises(StoreFull):
        store.put(parse_name("new/deep/model"), made())
    assert [path.name for path in (store.root / "manifests").iterdir()] == ["some"]


def test_warnings_of_a_file_are_logged_once_until_they_change(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path = store.root / "manifests/other/latest.json"
    store.put(OTHER, made())
    path.write_text(write_manifest(made()).replace('"loader": {', '"loader": {"n_ctxx": 1'))
    store.get(OTHER)
    store.get(OTHER)
    assert [record.message for record in caplog.records] == [
        f"{path}: unknown key 'loader.n_ctxx' is ignored"
    ]
    path.write_text(write_manifest(made()).replace('"loader": {', '"loader": {"n_ctxy": 1'))
    store.get(OTHER)
    assert len(caplog.records) == 2


def test_io_errors_name_path_and_errno(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Not a directory") as raised:
        Store(tmp_path / "file" / "home")
    assert str(tmp_path / "file") in raised.value.message


def test_a_disk_that_refuses_the_adders_lock_is_an_error_of_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, shared: bool = False) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("manifests.store.locked", refuse)
    monkeypatch.setattr(store, "collect", lambda: None)
    with pytest.raises(StoreFull), store.adding():
        pass


def _with_blob(store: Store, source: Path) -> tuple[Manifest, Path]:
    blob = store.add_blob(source)
    return made(blobs=(blob,)), store.blob_path(blob.digest)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    return path


def test_delete_removes_blobs_with_their_last_name(store: Store, source: Path) -> None:
    with store.adding():
        manifest, blob = _with_blob(store, source)
        store.put(NAME, manifest)
    store.copy(NAME, OTHER)
    store.delete(NAME)
    assert blob.exists()
    store.delete(OTHER)
    assert not blob.exists()
    assert list((store.root / "manifests").iterdir()) == []


def test_what_is_kept_beside_a_blob_goes_with_it(store: Store, source: Path) -> None:
    with store.adding():
        manifest, blob = _with_blob(store, source)
        store.put(NAME, manifest)
    store.put(OTHER, made())
    store.working_sets.mkdir()
    beside = store.working_sets / f"{blob.name}.lazy.msgpack"
    orphan = store.working_sets / f"sha256-{'0' * 63}f.lazy.msgpack"
    beside.touch()
    orphan.touch()
    store.delete(OTHER)
    assert beside.exists() and not orphan.exists()
    store.delete(NAME)
    assert not beside.exists()


def test_a_blob_being_added_outlives_a_delete(store: Store, source: Path) -> None:
    store.put(OTHER, made())
    with store.adding():
        manifest, blob = _with_blob(store, source)
        Store(store.root).delete(OTHER)
        assert blob.exists()
        store.put(NAME, manifest)
    assert blob.exists()


def test_what_is_added_and_never_named_goes(store: Store, source: Path) -> None:
    def add_and_fail() -> Path:
        with store.adding():
            _, blob = _with_blob(store, source)
            assert blob.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_and_fail()
    assert list((store.root / "blobs").iterdir()) == []


def test_orphans_of_a_killed_create_go_at_start(store: Store, source: Path) -> None:
    _, blob = _with_blob(store, source)
    Store(store.root)
    assert not blob.exists()


def test_a_broken_manifest_keeps_its_blobs(store: Store, source: Path) -> None:
    with store.adding():
        manifest, blob = _with_blob(store, source)
        store.put(NAME, manifest)
    path = store.root / "manifests/some/model/q4.json"
    path.write_text(path.read_text()[:-20])
    store.put(OTHER, made())
    store.delete(OTHER)
    assert blob.exists()


def test_blob_path_takes_digests_only(store: Store) -> None:
    digest = "sha256-" + "a" * 64
    assert store.blob_path(digest) == store.root / "blobs" / digest
    for bad in ("../../etc/passwd", "sha256-" + "a" * 63, "sha256:" + "a" * 64, digest + "\n"):
        with pytest.raises(InvalidValue):
            store.blob_path(bad)


def _count_up(root: Path, times: int) -> None:
    store = Store(root)
    for _ in range(times):
        store.edit(NAME, lambda m: _seed((m.parameters.seed or 0) + 1)(m))


def test_no_answered_edit_of_racing_processes_is_lost(store: Store) -> None:
    store.put(NAME, made())
    children = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _count_up(store.root, 40)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]
    assert store.get(NAME).parameters.seed == 80


def test_no_answered_edit_of_racing_threads_is_lost(store: Store) -> None:
    store.put(NAME, made())
    threads = [threading.Thread(target=_count_up, args=(store.root, 20)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get(NAME).parameters.seed == 80


def test_readers_never_see_half_a_manifest(store: Store) -> None:
    """A long manifest, so that a write in place would be seen in the middle."""
    text = "x" * 300_000
    store.put(NAME, made(system=text))
    writer = threading.Thread(target=_count_up, args=(store.root, 30))
    writer.start()
    reads = 0
    while writer.is_alive() or reads < 30:
        assert store.get(NAME).system == text
        reads += 1
    writer.join()


def test_one_of_two_racing_deletes_wins(store: Store) -> None:
    store.put(NAME, made())
    outcomes: list[str] = []

    def delete() -> None:
        try:
            store.delete(NAME)
            outcomes.append("deleted")
        except ModelMissing:
            outcomes.append("missing")

    threads = [threading.Thread(target=delete) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["deleted", "missing"]


def test_put_over_another_frees_its_blobs(store: Store, source: Path) -> None:
    with store.adding():
        manifest, blob = _with_blob(store, source)
        store.put(NAME, manifest)
    with store.adding():
        store.put(NAME, made(blobs=(Blob(digest="sha256-" + "1" * 64, size=1, filename="x"),)))
    assert not blob.exists()
