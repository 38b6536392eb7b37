"""Which layer and which tensor class the bytes in RAM belong to, seen from outside the worker.

The files say where each tensor lies in them, the kernel which pages of the files are in
RAM and what the worker has at those addresses. The worker is not asked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from residency.classes import Place, TensorClass
from residency.file_cache import FileProbe
from residency.libc import PAGE_BYTES
from residency.procfs import PROC, FileMapping, ProcFS, ProcUnavailable
from residency.ranges import Range, align_outward, intersect

_CLASSES = list(TensorClass)


class Backing(StrEnum):
    """What kind of memory holds a weight."""

    FILE = "file"
    ANONYMOUS = "anonymous"
    DEVICE = "device"


@dataclass(frozen=True)
class Extent:
    """Where one tensor lies."""

    place: Place
    path: Path
    bytes: Range
    """In that file."""
    elsewhere: Backing | None = None
    """What the worker loaded it into, if not to where it maps the file."""


@dataclass(frozen=True)
class Cell:
    """Bytes of the tensors of one place; None is unknown, never a guess.

    Of a page that two tensors share each counts its own bytes.
    """

    place: Place
    bytes: int
    backing: Mapping[Backing, int] | None
    """They add up to bytes. None also while the model loads."""
    resident_bytes: int | None
    """Of those in files and in anonymous memory, those in RAM: whoever brought them there."""
    touched_bytes: int | None
    """Of those, the ones in the worker's page table."""
    locked_bytes: int | None
    """Of touched_bytes, those locked in RAM."""


def class_map(
    pid: int,
    extents: Iterable[Extent],
    file_probe: FileProbe,
    mapped_at: Mapping[Path, int],
    proc: ProcFS = PROC,
) -> list[Cell]:
    """The cells now, those outside the layers first.

    file_probe has to hold the extents' files; mapped_at says at which address the worker
    maps a file's first byte, or mapped it before it laid other memory over it. Looks at
    every page. Raises ProcessGone.
    """
    places: defaultdict[Place, list[Extent]] = defaultdict(list)
    for extent in extents:
        places[extent.place].append(extent)
    paths = sorted({extent.path for each in places.values() for extent in each})
    pages = _Worker(pid, proc, file_probe, mapped_at).pages(paths)
    return [_cell(place, places[place], pages) for place in sorted(places, key=_order)]


def _order(place: Place) -> tuple[int, int]:
    layer = -1 if place.layer is None else place.layer
    return layer, _CLASSES.index(place.kind)


@dataclass(frozen=True)
class _Pages:
    """Of one file a byte for each page: 1 is yes. None is unknown."""

    on_file: bytes
    """The worker maps the file there."""
    anonymous: bytes
    """It has other memory there, with the same bytes."""
    touched: bytes
    locked: bytes
    resident: bytes | None


@dataclass(frozen=True)
class _Worker:
    pid: int
    proc: ProcFS
    file_probe: FileProbe
    mapped_at: Mapping[Path, int]

    def pages(self, paths: Sequence[Path]) -> dict[Path, _Pages]:
        """Without those files of which nothing is known."""
        identities = {path: self.file_probe.identity(path) for path in paths}
        wanted = [identity for identity in identities.values() if identity]
        windows = {path: self._window(path) for path in paths if path in self.mapped_at}
        try:
            mappings = self.proc.smaps(self.pid, wanted, sorted(windows.values()))
        except ProcUnavailable:
            return {}
        return {
            path: self._of_file(
                path, window, [m for m in mappings if m.file in (identities[path], None)]
            )
            for path, window in windows.items()
        }

    def _window(self, path: Path) -> Range:
        """The addresses of the whole file."""
        (window,) = align_outward(
            [Range(self.mapped_at[path], self.mapped_at[path] + self.file_probe.size(path))],
            PAGE_BYTES,
        )
        return window

    def _of_file(self, path: Path, window: Range, mappings: Sequence[FileMapping]) -> _Pages:
        """Of the mappings that lie in the window."""
        base, n_pages = window.start, len(window) // PAGE_BYTES
        on_file, anonymous, touched, locked = (bytearray(n_pages) for _ in range(4))
        cached = self.file_probe.resident_flags(path)
        resident = None if cached is None else bytearray(cached[:n_pages].ljust(n_pages, b"\0"))
        for mapping in mappings:
            for part in intersect([mapping.addresses], [window]):
                at = slice((part.start - base) // PAGE_BYTES, (part.end - base) // PAGE_BYTES)
                flags = self.proc.pagemap_flags(self.pid, part)
                touched[at] = flags
                if mapping.mlocked:
                    locked[at] = flags
                (anonymous if mapping.file is None else on_file)[at] = b"\1" * len(flags)
                if mapping.file is None and resident is not None:
                    resident[at] = flags
        frozen = None if resident is None else bytes(resident)
        return _Pages(bytes(on_file), bytes(anonymous), bytes(touched), bytes(locked), frozen)


def _cell(place: Place, extents: Sequence[Extent], pages: Mapping[Path, _Pages]) -> Cell:
    parts = [_part(extent, pages.get(extent.path)) for extent in extents]
    backings = [part.backing for part in parts if part.backing is not None]
    total = sum(backings, Counter[Backing]())
    return Cell(
        place=place,
        bytes=sum(len(extent.bytes) for extent in extents),
        backing={each: total[each] for each in Backing} if len(backings) == len(parts) else None,
        resident_bytes=_sum(part.resident for part in parts),
        touched_bytes=_sum(part.touched for part in parts),
        locked_bytes=_sum(part.locked for part in parts),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    """Unknown if one of them is."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


@dataclass(frozen=True)
class _Part:
    """One tensor's share of its cell."""

    backing: Counter[Backing] | None = None
    resident: int | None = None
    touched: int | None = None
    locked: int | None = None


def _part(extent: Extent, pages: _Pages | None) -> _Part:
    size = len(extent.bytes)
    if extent.elsewhere is Backing.DEVICE:
        return _Part(Counter({Backing.DEVICE: size}), 0, 0, 0)
    if extent.elsewhere is not None:  # at addresses that nobody has told
        return _Part(Counter({extent.elsewhere: size}))
    if pages is None:
        return _Part()
    on_file, anonymous = _in(pages.on_file, extent.bytes), _in(pages.anonymous, extent.bytes)
    if on_file + anonymous < size:  # it is not mapped yet, or not where we look
        return _Part()
    touched = _in(pages.touched, extent.bytes)
    resident = None if pages.resident is None else _in(pages.resident, extent.bytes)
    if resident is None and touched == size:
        resident = size  # the page cache is kept from us, but these are in a page table
    backing = Counter({Backing.FILE: on_file, Backing.ANONYMOUS: anonymous})
    return _Part(backing, resident, touched, _in(pages.locked, extent.bytes))


def _in(flags: bytes, part: Range) -> int:
    """Bytes of the part that lie in pages whose flag is 1."""
    first, last = part.start // PAGE_BYTES, part.end // PAGE_BYTES
    whole = flags.count(1, first, last) * PAGE_BYTES
    # Whole pages from that of the first byte, without its head, with the tail of the last.
    head = part.start % PAGE_BYTES if flags[first : first + 1] == b"\1" else 0
    tail = part.end % PAGE_BYTES if flags[last : last + 1] == b"\1" else 0
    return whole - head + tail
