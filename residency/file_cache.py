"""How much of a model's files is in the page cache, whoever read it in.

Two calls tell it, both without bringing a page in, and each can lie (measured on 6.18):

- cachestat(2) walks the cache by folio and answers for 13 GB in 0.05 ms. On overlayfs
  it sees the empty cache of the overlay and says 0. Used on filesystems known to
  keep their own cache.
- mincore(2) sees what a mapping would find there, overlayfs included. It looks up page
  by page (14 ms a cached GB, 119 ms for an empty 13 GB), and reports every page to
  a caller who neither owns nor may write the file. Used elsewhere, where it is honest.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from residency import libc
from residency.procfs import PROC, FileId, ProcFS, ProcUnavailable
from residency.ranges import Range, align_outward, intersect, slices

_MINCORE_BYTES = 1 << 30
"""Mapped bytes asked of mincore at once: a vector of 256 KiB."""
_CACHE_OF_THEIR_OWN = frozenset(
    {
        0xEF53,  # ext2, ext3, ext4
        0x58465342,  # xfs
        0x9123683E,  # btrfs
        0xF2F52010,  # f2fs
        0x01021994,  # tmpfs
    }
)
"""Filesystems whose files are mapped from the page cache that cachestat sees. linux/magic.h"""
_LOWEST_BIT = bytes(byte & 1 for byte in range(256))


class Source(StrEnum):
    """How a number of resident bytes was learned."""

    CACHESTAT = "cachestat"
    MINCORE = "mincore"
    SMAPS = "smaps"
    UNKNOWN = "unknown"


class _Opened:
    """What a with block closes again."""

    _opened: ExitStack

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._opened.close()


class FileProbe(_Opened):
    """Keeps the files of a model open and mapped, for as long as it is loaded.

    It goes on seeing the files it opened, when others take their names or when
    they are cut short: no page of the mappings is ever touched, so none can
    fault. Raises OSError if a file cannot be opened.
    """

    def __init__(self, paths: Sequence[Path], proc: ProcFS = PROC) -> None:
        with ExitStack() as opened:
            self._files = {path: opened.enter_context(_File(path, proc)) for path in paths}
            self._opened = opened.pop_all()

    def size(self, path: Path) -> int:
        """Bytes of the file as it is now."""
        return self._files[path].size()

    def identity(self, path: Path) -> FileId | None:
        """What maps and smaps call the file; None if it is empty, or there is no /proc."""
        return self._files[path].identity

    def resident_bytes(
        self, extents: Mapping[Path, Iterable[Range]] | None = None
    ) -> tuple[int | None, Source]:
        """Bytes of the files' pages in RAM, and how that is known; whole pages count.

        extents gives file ranges by path; None is all of all files. (None,
        UNKNOWN) if the kernel will not tell for one of them.
        """
        if extents is None:
            extents = {path: [Range(0, sys.maxsize)] for path in self._files}
        counts = [self._files[path].resident(ranges) for path, ranges in extents.items()]
        if any(source is Source.UNKNOWN for _, source in counts):
            return None, Source.UNKNOWN
        mincore = any(source is Source.MINCORE for _, source in counts)
        return sum(count for count, _ in counts), Source.MINCORE if mincore else Source.CACHESTAT

    def resident_flags(self, path: Path) -> bytes | None:
        """A byte for each page of the file: 1 if it is in RAM, else 0; None if the kernel will
        not tell. Looks at every page: 14 ms for each GB."""
        return self._files[path].flags()


class _File(_Opened):
    """One open, mapped file."""

    def __init__(self, path: Path, proc: ProcFS) -> None:
        with ExitStack() as opened:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, self._fd)
            self._length = self.size()
            self.identity: FileId | None = None
            if self._length:
                self._address = libc.mmap_file(self._fd, self._length)
                opened.callback(libc.munmap, self._address, self._length)
                self.identity = _identity(self._address, proc)
            self._opened = opened.pop_all()

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def resident(self, ranges: Iterable[Range]) -> tuple[int, Source]:
        """Bytes in RAM; 0 and UNKNOWN if that cannot be learned."""
        pages = align_outward(intersect(ranges, [Range(0, self._length)]), libc.PAGE_BYTES)
        try:
            count = self._by_cachestat(pages)
        except OSError as error:
            if error.errno == errno.EPERM and _cachestat_works():
                return 0, Source.UNKNOWN
        else:
            if libc.filesystem_magic(self._fd) in _CACHE_OF_THEIR_OWN:
                return count, Source.CACHESTAT
        if not _mincore_is_honest(self._fd):
            return 0, Source.UNKNOWN
        return self._by_mincore(pages), Source.MINCORE

    def flags(self) -> bytes | None:
        if not _mincore_is_honest(self._fd):
            return None
        whole = align_outward([Range(0, self._length)], libc.PAGE_BYTES)
        return b"".join(self._mincore(whole))

    def _by_cachestat(self, pages: Iterable[Range]) -> int:
        counts = (libc.cachestat(self._fd, run.start, len(run)) for run in pages)
        return sum(counts) * libc.PAGE_BYTES

    def _by_mincore(self, pages: Sequence[Range]) -> int:
        return sum(flags.count(1) for flags in self._mincore(pages)) * libc.PAGE_BYTES

    def _mincore(self, pages: Sequence[Range]) -> Iterator[bytes]:
        """Of pieces of the pages, a byte a page that is 1 if it is in RAM, else 0."""
        for piece in slices(pages, _MINCORE_BYTES):
            yield libc.mincore(self._address + piece.start, len(piece)).translate(_LOWEST_BIT)


def _identity(address: int, proc: ProcFS) -> FileId | None:
    try:
        return proc.file_at("self", address)
    except ProcUnavailable:
        return None


@cache
def _cachestat_works() -> bool:
    """Whether this process may call cachestat at all: on a file of its own.

    A seccomp filter of a container may refuse the call with the same EPERM with
    which the kernel refuses a file; then it says nothing about the file.
    """
    fd = os.memfd_create("corral-probe", os.MFD_CLOEXEC)
    try:
        libc.cachestat(fd, 0, libc.PAGE_BYTES)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _mincore_is_honest(fd: int) -> bool:
    """Whether this process owns or may write the file, as the kernel asks it in mincore.

    Where only CAP_FOWNER would do (a read-only mount), this says no: unknown is
    safe, a false 100 % is not.
    """
    if os.fstat(fd).st_uid == os.geteuid():
        return True
    return os.access(f"/proc/self/fd/{fd}", os.W_OK, effective_ids=True)
