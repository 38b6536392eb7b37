"""Copy mapped weights to anonymous memory, in place: no address changes, so no token does.

A page range of a file mapping is mapped anew (MAP_FIXED), filled from the file and made
read-only. The page cache gives back each piece before the next is read, so no byte is
charged twice for longer than a piece takes.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from residency import libc
from residency.file_cache import FileProbe
from residency.procfs import PROC, ProcFS, ProcUnavailable
from residency.ranges import Range, slices

PIECE_BYTES = 32 << 20
"""Read at once. What the kernel reads ahead comes on top; together under 64 MiB."""


class CopyFailed(Exception):
    """The weights could not be copied; the mapping is unusable, as parts of it are zeros."""


def copy_in_place(
    path: Path,
    mapping: Range,
    runs: Sequence[Range],
    piece_bytes: int = PIECE_BYTES,
    proc: ProcFS = PROC,
) -> None:
    """Replaces page runs of a mapping by anonymous memory of the same bytes, read-only.

    mapping holds the addresses of the file at path, mapped from its first byte to its last;
    runs are sorted page ranges in it. No other thread may touch them meanwhile. Raises
    CopyFailed; an address that was replaced reads as zeros then.
    """
    if sys.platform != "linux":
        raise CopyFailed("the copy to anonymous memory needs Linux")
    try:
        with FileProbe([path], proc) as probe, _Source(path, probe) as source:
            _refuse_other_file(path, probe, runs, proc)
            for run in runs:
                libc.mmap_anonymous(run.start, len(run))
                libc.advise_huge(run.start, len(run))
                for piece in slices([run], piece_bytes):
                    source.read(piece.start, Range(*_file_bounds(piece, mapping)))
                libc.mprotect_read(run.start, len(run))
    except OSError as error:
        raise CopyFailed(f"{path}: {error.strerror or error}") from error


def _file_bounds(piece: Range, mapping: Range) -> tuple[int, int]:
    """Of a file range; the last page reaches over the end of the file."""
    return piece.start - mapping.start, min(piece.end, mapping.end) - mapping.start


def _refuse_other_file(path: Path, probe: FileProbe, runs: Sequence[Range], proc: ProcFS) -> None:
    """The path may name another file by now than the one that is mapped."""
    try:
        there = proc.file_at("self", runs[0].start) if runs else None
    except ProcUnavailable:
        return
    if runs and there != probe.identity(path):
        raise CopyFailed(f"{path} was replaced while it was being loaded")


class _Source:
    """A file that is read past the page cache, or from it where it has the bytes."""

    def __init__(self, path: Path, probe: FileProbe) -> None:
        self._path = path
        self._probe = probe
        with ExitStack() as opened:
            self._buffered = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, self._buffered)
            self._direct = _open_direct(path)
            if self._direct is not None:
                opened.callback(os.close, self._direct)
            self._opened = opened.pop_all()

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read(self, address: int, bytes: Range) -> None:
        """Fill whole pages from this file range, which begins with a page."""
        cached = self._is_cached(bytes)
        done = 0
        while done < len(bytes):
            direct = None if cached or done % libc.PAGE_BYTES else self._direct
            done += self._read_some(direct, address + done, bytes.start + done, len(bytes) - done)
        # From the start, as a folio may reach over the end of the piece before. What others map
        # stays.
        libc.fadvise(self._buffered, bytes.end, "DONTNEED")

    def _is_cached(self, bytes: Range) -> bool:
        """All of it; then a copy from there is faster than the disk, and takes no new page."""
        count, _ = self._probe.resident_bytes({self._path: [bytes]})
        return count is not None and count >= len(bytes)

    def _read_some(self, direct: int | None, address: int, offset: int, length: int) -> int:
        # O_DIRECT takes whole pages only; there is room, as only whole pages are filled.
        whole = -(-(address + length) // libc.PAGE_BYTES) * libc.PAGE_BYTES - address
        try:
            n = libc.pread(self._buffered if direct is None else direct, address, whole, offset)
        except OSError as error:
            if direct is None or error.errno != errno.EINVAL:
                raise
            self._direct = None
            return 0
        if n == 0:
            raise CopyFailed(
                f"{self._path} ends at byte {offset} and has weights up to byte "
                f"{offset + length}: it was cut short while it was being loaded"
            )
        return n


def _open_direct(path: Path) -> int | None:
    """None where the filesystem does not take O_DIRECT."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return None
