"""Opens a file that someone named as a model, and tells whether it is still the one it was."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from manifests.errors import InvalidGGUF


@dataclass(frozen=True)
class Stamp:
    """Differs when the file was replaced or written to."""

    device: int
    inode: int
    size: int
    """Bytes."""
    mtime_ns: int


@contextmanager
def open_source(path: Path) -> Iterator[tuple[BinaryIO, Stamp]]:
    """The regular file, unbuffered, and its stamp before anything is read. Raises InvalidGGUF,
    also for a read that fails within."""
    with reading(path), _open(path) as file:
        yield file, stamp_of(file, path)


def stamp_of(file: BinaryIO, path: Path) -> Stamp:
    """Raises InvalidGGUF for what is no regular file: a pipe or a device may have no end."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise InvalidGGUF(path, "is not a regular file")
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a failure to read what someone named as a model into InvalidGGUF."""
    try:
        yield
    except OSError as error:
        raise InvalidGGUF(path, f"cannot be read: {error.strerror}") from error


def _open(path: Path) -> BinaryIO:
    def opener(name: str, flags: int) -> int:
        # To open a named pipe must not wait for its writer.
        return os.open(name, flags | os.O_NONBLOCK)

    try:
        return open(path, "rb", buffering=0, opener=opener)
    except ValueError as error:  # a NUL or a lone surrogate in the path
        raise InvalidGGUF(path, f"is no path: {error}") from error
