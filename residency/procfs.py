"""What /proc tells about a process's memory: sizes, faults, mappings, present pages."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from residency.libc import PAGE_BYTES
from residency.ranges import Range, align_outward, join

Pid = int | Literal["self"]


# One pagemap entry describes one page. Documentation/admin-guide/mm/pagemap.rst
_ENTRY_BYTES = 8
_READ_PAGES = 1 << 17
"""Entries read at once: 1 MiB, which describes 512 MiB of 4 KiB pages."""
_TOP_BYTE = _ENTRY_BYTES - 1 if sys.byteorder == "little" else 0
_PRESENT = bytes(byte >> 7 for byte in range(256))
_CAP_IPC_LOCK = 1 << 14
_HUGE_KEYS = (b"AnonHugePages", b"ShmemPmdMapped", b"FilePmdMapped")
_SMAPS_KEYS = (b"Rss", b"VmFlags", *_HUGE_KEYS)


class ProcessGone(Exception):
    """The process has ended, or has no memory any more."""


class ProcUnavailable(Exception):
    """There is no /proc here, or it does not show this process to this user."""


@dataclass(frozen=True)
class Status:
    """Sizes of a whole process in bytes, as the kernel counts them.

    The resident one is a sum of per-CPU counters: it may be some pages per
    CPU behind the truth. locked_bytes is exact and counts address space.
    """

    rss_bytes: int
    locked_bytes: int
    may_lock_freely: bool
    """CAP_IPC_LOCK is effective: RLIMIT_MEMLOCK does not bind."""
    huge_pages_off: bool
    """This process alone is denied transparent huge pages (PR_SET_THP_DISABLE)."""


@dataclass(frozen=True)
class FileId:
    """A file as maps prints it; btrfs and overlayfs give stat another device."""

    device: str
    inode: int


@dataclass(frozen=True)
class FileMapping:
    """One mapping, and its pages in this process's page table."""

    addresses: Range
    file: FileId | None
    """None for anonymous memory."""
    offset: int
    rss_bytes: int
    huge_bytes: int
    mlocked: bool

    @property
    def file_range(self) -> Range:
        return Range(self.offset, self.offset + len(self.addresses))

    @property
    def locked_bytes(self) -> int:
        """Pages that are in RAM and locked by this process.

        smaps' own Locked is a proportional share: it halves when a second
        process maps the pages (measured on 6.18), so the lock flag decides here.
        """
        return self.rss_bytes if self.mlocked else 0


@dataclass(frozen=True)
class ProcFS:
    """Reads a proc filesystem. Whatever is asked of a process raises ProcessGone if it has
    ended; all raise ProcUnavailable."""

    root: Path = Path("/proc")

    def status(self, pid: Pid) -> Status:
        with self._open(pid, "status") as file:
            fields = dict(_fields(file))
        if "VmRSS" not in fields:  # a zombie
            raise ProcessGone(f"process {pid} has no memory")
        return Status(
            rss_bytes=_bytes(fields["VmRSS"]),
            locked_bytes=_bytes(fields["VmLck"]),
            may_lock_freely=bool(int(fields["CapEff"], 16) & _CAP_IPC_LOCK),
            huge_pages_off=fields.get("THP_enabled") == "0",
        )

    def major_faults(self, pid: Pid) -> int:
        """Faults of all its threads that had to wait for a disk, since it started."""
        with self._open(pid, "stat") as file:
            # The name stands in parentheses and may hold any byte, these included.
            after_name = file.read().rpartition(b")")[2].split()
        return int(after_name[9])

    def n_mappings(self, pid: Pid) -> int:
        with self._open(pid, "maps") as file:
            return sum(1 for _ in file)

    def max_mappings(self) -> int:
        """Mappings that a process may have (vm.max_map_count)."""
        path = self.root / "sys/vm/max_map_count"
        try:
            return int(path.read_text())
        except OSError as error:
            raise ProcUnavailable(f"{path}: {error.strerror}") from error

    def file_at(self, pid: Pid, address: int) -> FileId | None:
        """The file mapped at an address."""
        with self._open(pid, "maps") as file:
            for words in map(bytes.split, file):
                if address in range(*_bounds(words[0])):
                    return _file_id(words)
        return None

    def smaps(
        self, pid: Pid, wanted: Collection[FileId], anonymous: Sequence[Range] = ()
    ) -> list[FileMapping]:
        """The process's mappings of these files, and its anonymous ones that lie in these
        address ranges (sorted and disjoint). The kernel walks its page tables."""
        with self._open(pid, "smaps") as file:
            return list(_mappings(file, wanted, anonymous))

    def pagemap_present(self, pid: Pid, ranges: Iterable[Range]) -> list[Range]:
        """The pages of these address ranges that its page table holds.

        What a process touched comes with neighbours: on a fault the kernel also
        maps what is cached around it, 64 KiB by default, and up to 2 MiB where
        the cache holds the file in large folios, as after writing it (6.18).
        """
        with self._open(pid, "pagemap") as file:
            return join(
                run for asked in align_outward(ranges, PAGE_BYTES) for run in _present(file, asked)
            )

    def pagemap_flags(self, pid: Pid, pages: Range) -> bytes:
        """A byte for each of these whole pages: 1 if its page table holds it, else 0."""
        with self._open(pid, "pagemap") as file:
            return b"".join(flags for _, flags in _flags(file, pages))

    @contextmanager
    def _open(self, pid: Pid, name: str) -> Iterator[BufferedReader]:
        path = self.root / str(pid) / name
        try:
            with path.open("rb") as file:
                yield file
        except ProcessLookupError as error:
            raise ProcessGone(f"process {pid} is gone") from error
        except FileNotFoundError as error:
            if not (self.root / "self").exists():
                raise ProcUnavailable(f"no proc filesystem at {self.root}") from error
            if path.parent.exists():
                raise ProcUnavailable(f"this kernel has no {path}") from error
            raise ProcessGone(f"process {pid} is gone") from error
        except PermissionError as error:
            raise ProcUnavailable(f"{path}: {error.strerror}") from error


PROC = ProcFS()


def _fields(lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for line in lines:
        key, _, value = line.decode("ascii", "replace").partition(":")
        yield key, value.strip()


def _bytes(value: str) -> int:
    """Of a value such as `12 kB`, which is KiB."""
    return int(value.split(maxsplit=1)[0]) * 1024


def _bounds(word: bytes) -> tuple[int, int]:
    start, _, end = word.partition(b"-")
    return int(start, 16), int(end, 16)


def _file_id(words: list[bytes]) -> FileId | None:
    """Of a mapping's line: addresses, permissions, offset, device, inode, name."""
    inode = int(words[4])
    return FileId(words[3].decode("ascii"), inode) if inode else None


def _is_wanted(words: list[bytes], wanted: Collection[FileId], anonymous: Sequence[Range]) -> bool:
    file = _file_id(words)
    if file is not None:
        return file in wanted
    start, end = _bounds(words[0])
    place = bisect_right(anonymous, start, key=lambda run: run.start)
    return place > 0 and end <= anonymous[place - 1].end


def _mappings(
    lines: Iterable[bytes], wanted: Collection[FileId], anonymous: Sequence[Range]
) -> Iterator[FileMapping]:
    header: list[bytes] = []
    values: dict[bytes, bytes] = {}
    for line in lines:
        if not line[:1].isupper():  # addresses are lower-case hexadecimal
            words = line.split(None, 5)
            header, values = (words, {}) if _is_wanted(words, wanted, anonymous) else ([], {})
        elif header and line.startswith(_SMAPS_KEYS):
            key, _, values[key] = line.partition(b":")
            if key == b"VmFlags":  # the last line of each mapping
                yield _mapping(header, values)


def _mapping(header: list[bytes], values: dict[bytes, bytes]) -> FileMapping:
    return FileMapping(
        addresses=Range(*_bounds(header[0])),
        file=_file_id(header),
        offset=int(header[2], 16),
        rss_bytes=_bytes(values[b"Rss"].decode()),
        huge_bytes=sum(_bytes(values[key].decode()) for key in _HUGE_KEYS if key in values),
        mlocked=b"lo" in values[b"VmFlags"].split(),
    )


def _present(pagemap: BufferedReader, asked: Range) -> Iterator[Range]:
    """Runs of present pages; one buffer's worth is in memory at a time."""
    for start, flags in _flags(pagemap, asked):
        for first, last in _set_runs(flags):
            yield Range(start + first * PAGE_BYTES, start + last * PAGE_BYTES)


def _flags(pagemap: BufferedReader, asked: Range) -> Iterator[tuple[int, bytes]]:
    """Buffers of flags, a byte a page, each with its first address."""
    for start in range(asked.start, asked.end, _READ_PAGES * PAGE_BYTES):
        n_pages = min(_READ_PAGES, (asked.end - start) // PAGE_BYTES)
        pagemap.seek(start // PAGE_BYTES * _ENTRY_BYTES)
        entries = pagemap.read(n_pages * _ENTRY_BYTES)
        if not entries:
            raise ProcessLookupError
        yield start, entries[_TOP_BYTE::_ENTRY_BYTES].translate(_PRESENT)


def _set_runs(flags: bytes) -> Iterator[tuple[int, int]]:
    """Half-open runs of ones among zeros and ones."""
    first = flags.find(1)
    while first >= 0:
        last = flags.find(0, first)
        last = len(flags) if last < 0 else last
        yield first, last
        first = flags.find(1, last)
