"""Blobs: whole or not there, once each, and never more than the disk holds."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from made_manifests import made

from manifests import blobs, durable
from manifests.errors import InvalidGGUF, StoreFull
from manifests.names import parse_name
from manifests.store import Store

CONTENT = os.urandom(1000) * 3000  # 3 MB: some of the copy's pieces


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(CONTENT)
    return path


def _blobs(store: Store) -> list[str]:
    return [path.name for path in (store.root / "blobs").iterdir()]


def test_is_stored_under_its_digest(tmp_path: Path, source: Path) -> None:
    store = Store(tmp_path / "home")
    seen: list[tuple[int, int]] = []
    blob = store.add_blob(source, lambda done, total: seen.append((done, total)))
    assert blob.digest == f"sha256-{hashlib.sha256(CONTENT).hexdigest()}"
    assert (blob.size, blob.filename) == (len(CONTENT), "m.gguf")
    assert store.blob_path(blob.digest).read_bytes() == CONTENT
    assert _blobs(store) == [blob.digest]
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == ((0, len(CONTENT)), (len(CONTENT), len(CONTENT)))
    assert source.read_bytes() == CONTENT


def test_identical_content_is_stored_once(tmp_path: Path, source: Path) -> None:
    store = Store(tmp_path / "home")
    first = store.add_blob(source)
    inode = store.blob_path(first.digest).stat().st_ino
    again = source.rename(tmp_path / "renamed.gguf")
    second = store.add_blob(again)
    assert (second.digest, second.filename) == (first.digest, "renamed.gguf")
    assert store.blob_path(first.digest).stat().st_ino == inode


def test_same_size_and_other_content_is_another_blob(tmp_path: Path, source: Path) -> None:
    store = Store(tmp_path / "home")
    store.add_blob(source)
    source.write_bytes(CONTENT[::-1])
    second = store.add_blob(source)
    assert store.blob_path(second.digest).read_bytes() == CONTENT[::-1]
    assert len(_blobs(store)) == 2


def test_a_clone_has_the_same_digest(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that shares extents: here the ioctl's work is done by copying."""

    def ioctl(copy: int, request: int, source_fd: int) -> None:
        assert request == 0x40049409
        os.pwrite(copy.fileno(), os.pread(source_fd, len(CONTENT), 0), 0)  # type: ignore[attr-defined]

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    monkeypatch.setattr(blobs, "_copied", None)
    store = Store(tmp_path / "home")
    blob = store.add_blob(source)
    assert blob.digest == f"sha256-{hashlib.sha256(CONTENT).hexdigest()}"
    assert store.blob_path(blob.digest).read_bytes() == CONTENT


def test_progress_may_end_it(tmp_path: Path, source: Path) -> None:
    def cancel(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    store = Store(tmp_path / "home")
    with pytest.raises(KeyboardInterrupt):
        store.add_blob(source, cancel)
    assert _blobs(store) == []


def test_a_source_that_shrinks_is_refused(tmp_path: Path, source: Path) -> None:
    def shrink(done: int, total: int) -> None:
        if done == 0:
            os.truncate(source, total // 2)

    store = Store(tmp_path / "home")
    with pytest.raises(InvalidGGUF, match="changed while it was read"):
        store.add_blob(source, shrink)
    assert _blobs(store) == []


def test_a_source_that_grows_without_end_is_read_to_its_size(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = blobs._copied
    sizes: list[int] = []

    def growing(chunks: Iterator[bytes], to: BinaryIO) -> Iterator[bytes]:
        for chunk in copied(chunks, to):
            sizes.append(len(chunk))
            assert sum(sizes) <= len(CONTENT), "it would read on until the disk is full"
            with source.open("ab") as file:
                file.write(bytes(2 << 20))
            yield chunk

    monkeypatch.setattr(blobs, "_copied", growing)
    store = Store(tmp_path / "home")
    with pytest.raises(InvalidGGUF, match="changed while it was read"):
        store.add_blob(source)
    assert _blobs(store) == []


@pytest.mark.parametrize("stored_before", [False, True])
def test_a_source_that_is_written_to_in_place_is_refused(
    tmp_path: Path, source: Path, stored_before: bool
) -> None:
    store = Store(tmp_path / "home")
    before = [store.add_blob(source).digest] if stored_before else []
    os.utime(source, ns=(0, 0))

    def write(_done: int, _total: int) -> None:
        with source.open("r+b") as file:
            file.write(b"other")

    with pytest.raises(InvalidGGUF, match="changed while it was read"):
        store.add_blob(source, write)
    assert _blobs(store) == before


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd.gguf"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(InvalidGGUF, match=r"odd\.gguf: is not a regular file"):
        Store(tmp_path / "home").add_blob(path)


def test_a_damaged_blob_is_mended_by_its_source(tmp_path: Path, source: Path) -> None:
    store = Store(tmp_path / "home")
    blob = store.blob_path(store.add_blob(source).digest)
    with blob.open("r+b") as file, blob.open("rb") as mapped:
        file.write(b"damage")
        file.flush()
        damaged = mapped.read()
        store.add_blob(source)
        mapped.seek(0)
        assert mapped.read() == damaged, "a worker that maps the old file keeps it whole"
    assert blob.read_bytes() == CONTENT


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    with pytest.raises(InvalidGGUF, match=r"none\.gguf: cannot be read: No such file"):
        store.add_blob(tmp_path / "none.gguf")


def test_too_large_for_the_disk_is_told_before_writing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "home")
    monkeypatch.setattr(blobs, "free_bytes", lambda _: 1000)
    monkeypatch.setattr(blobs, "_copied", None)
    with pytest.raises(StoreFull, match="3,000,000 bytes are needed and 1,000 are free"):
        store.add_blob(source)
    assert _blobs(store) == []


def test_leftovers_go_at_start_and_live_writers_stay(tmp_path: Path, source: Path) -> None:
    store = Store(tmp_path / "home")
    dead = store.root / "blobs" / ".tmp-dead"
    dead.write_bytes(b"half")
    dead_manifest = store.root / "manifests" / "a" / ".tmp-dead"
    dead_manifest.parent.mkdir()
    dead_manifest.write_bytes(b"half")
    live: list[str] = []

    def restart(done: int, total: int) -> None:
        if 0 < done < total:
            Store(store.root)
            live.extend(name for name in _blobs(store) if name.startswith(".tmp-"))

    with store.adding():
        blob = store.add_blob(source, restart)
        assert live
        assert not dead.exists()
        assert not dead_manifest.exists()
        assert store.blob_path(blob.digest).read_bytes() == CONTENT


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_too_small(small_disk: Path, source: Path) -> None:
    store = Store(small_disk / "home")
    with pytest.raises(
        StoreFull, match=r"3,000,000 bytes are needed and [12],\d{3},\d{3} are free"
    ):
        store.add_blob(source)


def test_a_disk_that_fills_up_while_it_is_written(
    small_disk: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(small_disk / "home")
    monkeypatch.setattr(blobs, "free_bytes", lambda _: 1 << 40)
    with pytest.raises(StoreFull, match="3,000,000 bytes are needed") as raised:
        store.add_blob(source)
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOSPC
    assert _blobs(store) == []
    assert durable.free_bytes(small_disk) > 1 << 20


def test_a_full_disk_keeps_the_old_manifest(small_disk: Path) -> None:
    store = Store(small_disk / "home")
    name = parse_name("m")
    store.put(name, made())
    (small_disk / "ballast").write_bytes(bytes(durable.free_bytes(small_disk)))
    with pytest.raises(StoreFull):
        store.edit(name, lambda m: m.model_copy(update={"system": "x" * 100_000}))
    assert store.get(name) == made()
    assert [path.name for path in (store.root / "manifests/m").iterdir()] == ["latest.json"]
