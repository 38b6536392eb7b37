"""The native reader: a thread that brings parts of files into the page cache, in order.

Its source is native/reader, where the calls are described.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from residency import libc
from residency.read_order import FilePart

PIECE_BYTES = 1 << 20
"""One request for more is cut to the device's read-ahead (8 of 96 MiB arrived)."""
PIECES_AHEAD = 4
"""Asked for and not yet there. A page that computing needs at once waits behind these."""
HUGE_PAGE_BYTES = 2 << 20
_HUGE = 0


class _FileRange(ctypes.Structure):
    _fields_ = (
        ("offset", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("fd", ctypes.c_int32),
    )


class _Progress(ctypes.Structure):
    _fields_ = (
        ("passes", ctypes.c_uint64),
        ("read", ctypes.c_uint64),
        ("error", ctypes.c_int32),
        ("reading", ctypes.c_int32),
    )


@dataclass(frozen=True)
class Progress:
    """passes that have ended, and how far the last one came, which may be under way."""

    passes: int
    bytes_read: int
    errno: int
    """What ended the pass before its end: ENODATA where the file is shorter than asked for."""
    reading: bool


class Reader:
    """Reads as long as open_reader's block lasts: once, and again when asked to."""

    def __init__(self, library: ctypes.CDLL, handle: int, n_bytes: int) -> None:
        self._library = library
        self._handle = ctypes.c_void_p(handle)
        self.n_bytes = n_bytes
        """Of one pass."""

    def again(self) -> None:
        """Another pass, which skips what is cached. Returns at once."""
        self._library.corral_reader_again(self._handle)

    def progress(self) -> Progress:
        told = _Progress()
        self._library.corral_reader_look(self._handle, ctypes.byref(told))
        return Progress(told.passes, told.read, told.error, bool(told.reading))


@contextmanager
def open_reader(
    library: Path,
    paths: Sequence[Path],
    parts: Sequence[FilePart],
    *,
    huge: bool = False,
    pieces_ahead: int = PIECES_AHEAD,
) -> Iterator[Reader]:
    """Starts to read the parts of these files in their order. Leaving the block ends it, after
    the pieces under way. Raises OSError for a library, a file or a thread that is not to be had.

    What is read in `huge` pages may be followed by what lies behind it. Computing is faster with
    them, as addresses are found faster: a token of SmolLM2 took 0.96 to 0.97 of the time that it
    took where MAP_POPULATE had read the file, and 0.86 to 0.90 of that after a plain read (6.18,
    ext4). Where kernel or filesystem have no huge pages for files, smaller ones come.
    """
    native = _load(library)
    with ExitStack() as stack:
        fds = [stack.enter_context(_opened(path, huge=huge)) for path in paths]
        ranges = (_FileRange * len(parts))(
            *(_FileRange(p.bytes.start, len(p.bytes), fds[p.file]) for p in parts)
        )
        handle = native.corral_reader_start(
            ranges,
            len(parts),
            HUGE_PAGE_BYTES if huge else PIECE_BYTES,
            _HUGE if huge else pieces_ahead,
        )
        if not handle:
            code = ctypes.get_errno()
            raise OSError(code, f"no thread to read ahead: {os.strerror(code)}")
        stack.callback(native.corral_reader_stop, ctypes.c_void_p(handle))
        yield Reader(native, handle, sum(len(part.bytes) for part in parts))


@contextmanager
def _opened(path: Path, *, huge: bool) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        # With RANDOM the kernel adds nothing of its own: neighbours stay on the disk.
        libc.fadvise(fd, 0, "NORMAL" if huge else "RANDOM")
        yield fd
    finally:
        os.close(fd)


def _load(library: Path) -> ctypes.CDLL:
    native = ctypes.CDLL(str(library), use_errno=True)
    native.corral_reader_start.restype = ctypes.c_void_p
    native.corral_reader_start.argtypes = [
        ctypes.POINTER(_FileRange),
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_uint64,
    ]
    native.corral_reader_stop.restype = None
    native.corral_reader_again.restype = None
    native.corral_reader_look.restype = None
    return native
