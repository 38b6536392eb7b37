"""Weight files under the name of their SHA-256: added whole or not at all, each once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from manifests.durable import (
    TEMPORARY_PREFIX,
    free_bytes,
    io_errors,
    locked,
    sync_folder,
    temporary_path,
    try_locked,
)
from manifests.errors import InvalidGGUF, InvalidValue, StoreFull
from manifests.manifest import DIGEST, Blob
from manifests.source import Stamp, open_source, reading, stamp_of

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all. What it raises ends the work, with nothing left."""

_CHUNK = 1 << 20
_FICLONE = 0x40049409  # linux/fs.h: share the extents of another file (btrfs, xfs)


@dataclass(frozen=True)
class _Original:
    """The open file that is to be stored, and as what."""

    path: Path
    file: BinaryIO
    stamp: Stamp

    def check(self) -> None:
        """Raises InvalidGGUF unless the file is still what the stamp says."""
        if stamp_of(self.file, self.path) != self.stamp:
            raise InvalidGGUF(
                self.path, "changed while it was read: try again when nobody writes to it"
            )

    def chunks(self) -> Iterator[bytes]:
        chunks = _chunks(self.file, self.stamp.size)
        while True:
            # What fails here is the original, not the store.
            with reading(self.path):
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk


class Blobs:
    """The folder of blobs. Its lock guards the making of temporary files against the sweep."""

    def __init__(self, folder: Path, lock: Path) -> None:
        self._folder = folder
        self._lock = lock

    def path(self, digest: str) -> Path:
        """Where the blob lies or would lie. Raises InvalidValue for what is no digest."""
        if not re.fullmatch(DIGEST, digest):
            raise InvalidValue("digest", f"{digest[:100]!r} is not sha256- and 64 hex digits")
        return self._folder / digest

    def add(
        self, source: Path, progress: Progress | None = None, checked: Stamp | None = None
    ) -> Blob:
        """Store a copy of source, on disk when this returns; shares its extents where the file
        system can. A blob that is there already is used, after reading both once, and replaced
        if it is damaged. Raises StoreFull before anything is written if there is no room, and
        InvalidGGUF if source is not as it was checked, or changes while it is read."""
        report = _forward(progress)
        with open_source(source) as (file, stamp):
            original = _Original(source, file, checked or stamp)
            original.check()
            with io_errors(self._folder, stamp.size):
                digest = self._stored_digest(original, report)
                if digest is None:
                    digest = self._copy(original, report)
            filename = os.fsencode(source.name).decode(errors="replace")
            return Blob(digest=digest, size=stamp.size, filename=filename)

    def remove_except(self, digests: Collection[str]) -> None:
        """Remove every other blob. The caller knows that nobody is adding one."""
        for path in sorted(self._folder.glob("sha256-*")):
            if path.name not in digests:
                path.unlink()
        sync_folder(self._folder)

    def sweep(self) -> None:
        """Remove what killed writers left; a live writer holds a lock on its file. The caller
        holds the store's lock."""
        for path in self._folder.glob(f"{TEMPORARY_PREFIX}*"):
            with try_locked(path) as abandoned:
                if abandoned:
                    path.unlink(missing_ok=True)

    def _stored_digest(self, original: _Original, report: Progress) -> str | None:
        """The digest of the original if its blob is stored and sound. Reads the original only
        if a blob has its size."""
        size = original.stamp.size
        if all(path.stat().st_size != size for path in self._folder.glob("sha256-*")):
            return None
        digest = _digest(original.chunks(), size, report)
        original.check()
        if not self._is_sound(digest, size):
            return None
        sync_folder(self._folder)
        return digest

    def _is_sound(self, digest: str, size: int) -> bool:
        """Whether the blob is there with the content of its name."""
        stored = self.path(digest)
        if not stored.exists() or stored.stat().st_size != size:
            return False
        with stored.open("rb") as file:
            return _digest(_chunks(file, size), size, _unreported) == digest

    def _copy(self, original: _Original, report: Progress) -> str:
        size = original.stamp.size
        with self._temporary() as (copy, temporary):
            if _clone(copy, original.file):
                digest = _digest(_chunks(copy, size), size, report)
            else:
                self._check_room(size)
                digest = _digest(_copied(original.chunks(), copy), size, report)
            copy.flush()
            os.fsync(copy.fileno())
            original.check()
            temporary.replace(self.path(digest))
        sync_folder(self._folder)
        return digest

    def _check_room(self, size: int) -> None:
        available = free_bytes(self._folder)
        if available < size:
            raise StoreFull(self._folder, size, available)

    @contextmanager
    def _temporary(self) -> Iterator[tuple[BinaryIO, Path]]:
        temporary = temporary_path(self._folder)
        with locked(self._lock):
            file = temporary.open("x+b")
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            with file:
                yield file, temporary
        finally:
            temporary.unlink(missing_ok=True)


def _forward(progress: Progress | None) -> Progress:
    """Report only what is new: a source may be read twice, and a bar should not run back."""
    farthest = -1

    def report(done: int, total: int) -> None:
        nonlocal farthest
        if progress and done > farthest:
            farthest = done
            progress(done, total)

    return report


def _unreported(_done: int, _total: int) -> None:
    pass


def _clone(copy: BinaryIO, source: BinaryIO) -> bool:
    try:
        fcntl.ioctl(copy, _FICLONE, source.fileno())
    except OSError:  # another file system, or one that cannot: then bytes are copied
        return False
    return True


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The first size bytes, or what of them there is. A file that grows for ever ends too."""
    file.seek(0)
    while size and (chunk := file.read(min(_CHUNK, size))):
        size -= len(chunk)
        yield chunk


def _copied(chunks: Iterator[bytes], to: BinaryIO) -> Iterator[bytes]:
    for chunk in chunks:
        to.write(chunk)
        yield chunk


def _digest(chunks: Iterator[bytes], size: int, report: Progress) -> str:
    digest = hashlib.sha256()
    done = 0
    report(0, size)
    for chunk in chunks:
        digest.update(chunk)
        done += len(chunk)
        report(done, size)
    return f"sha256-{digest.hexdigest()}"
