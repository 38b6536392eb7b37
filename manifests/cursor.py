"""Reads a file's head forwards through a small window, never past its end or its limit."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from manifests.errors import InvalidGGUF
from manifests.source import Stamp, open_source

_WINDOW = 1 << 20
_U64 = struct.Struct("<Q")


class Cursor:
    """A position in a little-endian file. Holds a window and the longest value taken, no more.

    Every method raises InvalidGGUF when it would pass the end of the file or the limit.
    """

    def __init__(self, file: BinaryIO, path: Path, stamp: Stamp, limit: int) -> None:
        self.path = path
        self.stamp = stamp
        self.size = stamp.size
        self._file = file
        self._limit = limit
        self._window = b""
        self._start = 0
        self._at = 0

    @property
    def position(self) -> int:
        return self._start + self._at

    def seek(self, position: int) -> None:
        self._check(position)
        self._at = position - self._start
        if not 0 <= self._at <= len(self._window):
            self._window, self._start, self._at = b"", position, 0

    def skip(self, length: int) -> None:
        self.seek(self.position + length)

    def take(self, length: int) -> bytes:
        self._fill(length)
        taken = self._window[self._at : self._at + length]
        self._at += length
        return taken

    def unpack(self, layout: struct.Struct) -> tuple[int | float, ...]:
        return layout.unpack(self.take(layout.size))

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def at_most(self, count: int, limit: int, what: str) -> None:
        """Refuse a count that the file only claims."""
        if count > limit:
            raise InvalidGGUF(self.path, f"claims {count:,} {what}; at most {limit:,} are read")

    def name(self, limit: int, what: str) -> str:
        """A string that has to be UTF-8 and of at most limit bytes."""
        length = self.u64()
        self.at_most(length, limit, f"bytes for {what}")
        raw = self.take(length)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise InvalidGGUF(self.path, f"{what} is not UTF-8: {raw[:64]!r}") from None

    def skip_strings(self, count: int) -> None:
        """Pass over strings that each follow their length. The one loop that must be quick:
        a vocabulary has some hundred thousand."""
        length_at = _U64.unpack_from
        while count:
            self._fill(_U64.size)
            window, at = self._window, self._at
            last = len(window) - _U64.size
            while count and at <= last:
                at += _U64.size + length_at(window, at)[0]
                count -= 1
            self.skip(at - self._at)

    def _check(self, position: int) -> None:
        if position > self.size:
            raise InvalidGGUF(
                self.path,
                f"truncated: the header needs byte {position:,}, the file has {self.size:,}",
            )
        if position > self._limit:
            raise InvalidGGUF(self.path, f"the header is longer than {self._limit:,} bytes")

    def _fill(self, length: int) -> None:
        missing = self._at + length - len(self._window)
        if missing <= 0:
            return
        start = self.position
        self._check(start + length)
        rest = self._window[self._at :]
        self._file.seek(start + len(rest))
        self._window = rest + self._file.read(max(_WINDOW, missing))
        self._start, self._at = start, 0
        if len(self._window) < length:
            raise InvalidGGUF(self.path, "truncated while it was read")


@contextmanager
def open_cursor(path: Path, limit: int) -> Iterator[Cursor]:
    """A cursor at the start of a regular file. Raises InvalidGGUF, also for a failed read."""
    with open_source(path) as (file, stamp):
        yield Cursor(file, path, stamp, limit)
