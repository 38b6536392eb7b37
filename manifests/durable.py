"""Changes files so that a kill or power cut at any instant leaves the old or the new one, whole."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manifests.errors import StoreError, StoreFull

# Of files being written. No name or digest starts with a dot.
TEMPORARY_PREFIX = ".tmp-"


def temporary_path(folder: Path) -> Path:
    return folder / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"


def write_file(path: Path, content: bytes) -> None:
    """Put content at path, on disk when this returns. The folder has to be there."""
    temporary = temporary_path(path.parent)
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def make_folders(folder: Path) -> None:
    """Make the folder and those above it, on disk when this returns."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def remove_file(path: Path) -> None:
    path.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and removals in the folder last."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock file's flock, waiting for it: against other processes and, as each holder
    opens the file anew, against other threads. A killed holder lets go."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


@contextmanager
def try_locked(path: Path) -> Iterator[bool]:
    """Hold the lock file's flock unless someone else does: yields whether it is held."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


@contextmanager
def io_errors(path: Path, need: int = 0) -> Iterator[None]:
    """Turn an OSError into StoreFull (need: bytes that were to be written) or StoreError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(path, need, free_bytes(path)) from error
        raise StoreError(path, error) from error


def free_bytes(path: Path) -> int:
    """Bytes a non-root writer may still use on the file system of path, which may be yet to be
    made."""
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
