"""The map tells whose the bytes in RAM are, to the byte, and what it cannot know."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from page_files import (
    MIB,
    NOBODY,
    as_user,
    drop_cache,
    forked,
    linux_only,
    mapped,
    read_range,
    root_only,
    touch,
    write_file,
)

from residency import libc
from residency.class_map import Backing, Cell, Extent, class_map
from residency.classes import Place, TensorClass
from residency.file_cache import FileProbe
from residency.ledger import sample
from residency.procfs import ProcFS
from residency.ranges import Range

pytestmark = linux_only

ATTN, EXPERT = Place(0, TensorClass.ATTN), Place(0, TensorClass.EXPERT)
EMBD = Place(None, TensorClass.EMBD)
_MAP_FIXED = 0x10


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = write_file(tmp_path / "model", 8 * MIB)
    drop_cache(path)
    return path


def extents(path: Path) -> list[Extent]:
    """Three tensors behind a header; the first two meet in the middle of a page."""
    return [
        Extent(ATTN, path, Range(100, 2 * MIB + 100)),
        Extent(EXPERT, path, Range(2 * MIB + 100, 6 * MIB)),
        Extent(EMBD, path, Range(6 * MIB, 8 * MIB - 5)),
    ]


def of_child(path: Path, does: Callable[[Range], object], at: bool = True) -> dict[Place, Cell]:
    """The map of a child that maps the file and then does something with its addresses."""
    with mapped(path) as pages:
        libc.madvise(pages.start, len(pages), libc.MADV_RANDOM)
        # The probe maps the file too, and a child would have that mapping as well.
        with forked(lambda: does(pages)) as pid, FileProbe([path]) as probe:
            mapped_at = {path: pages.start} if at else {}
            return {c.place: c for c in class_map(pid, extents(path), probe, mapped_at)}


def overlay(pages: Range) -> None:
    """Anonymous memory in the place of a mapping, all of it present."""
    c = ctypes.CDLL(None, use_errno=True)
    c.mmap.restype, c.mmap.argtypes = ctypes.c_void_p, [
        ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64,
    ]  # fmt: skip
    how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    assert c.mmap(pages.start, len(pages), protection, how, -1, 0) == pages.start
    ctypes.memset(pages.start, 1, len(pages))


def test_each_byte_counts_for_the_tensor_it_belongs_to(model: Path) -> None:
    def reads(pages: Range) -> None:
        libc.munmap(pages.start + 7 * MIB, MIB)
        touch(Range(pages.start + MIB, pages.start + 2 * MIB + 4096))
        touch(Range(pages.start + 5 * MIB, pages.start + 6 * MIB))
        libc.mlock(pages.start + 5 * MIB, MIB)

    read_range(model, Range(0, MIB))  # by another process
    cells = of_child(model, reads)
    assert [(place, cell.bytes) for place, cell in cells.items()] == [
        (EMBD, 2 * MIB - 5),
        (ATTN, 2 * MIB),
        (EXPERT, 4 * MIB - 100),
    ]
    # 100 bytes of the header, of the page that both share 100 and 3996.
    assert cells[ATTN].resident_bytes == 2 * MIB
    assert cells[ATTN].touched_bytes == MIB + 100
    assert cells[EXPERT].touched_bytes == cells[EXPERT].resident_bytes == MIB + 4096 - 100
    assert (cells[ATTN].locked_bytes, cells[EXPERT].locked_bytes) == (0, MIB)
    assert cells[ATTN].backing == {"file": 2 * MIB, "anonymous": 0, "device": 0}
    # Half of it is mapped no more, and nobody knows what became of it.
    assert cells[EMBD] == Cell(EMBD, 2 * MIB - 5, None, None, None, None)


def test_the_map_adds_up_to_the_ledger_but_for_padding(model: Path) -> None:
    with mapped(model) as pages:
        libc.madvise(pages.start, len(pages), libc.MADV_RANDOM)
        some = Range(pages.start, pages.start + 3 * MIB)
        with forked(lambda: touch(some)) as pid, FileProbe([model]) as probe:
            cells = class_map(pid, extents(model), probe, {model: pages.start})
            ledger = sample(pid, [model], None, probe)
    padding = 100 + 5
    for told, total in (
        ([cell.touched_bytes for cell in cells], ledger.touched_bytes),
        ([cell.resident_bytes for cell in cells], ledger.resident_bytes),
        ([cell.locked_bytes for cell in cells], ledger.locked_bytes),
        ([cell.bytes for cell in cells], ledger.mapped_bytes),
    ):
        known = [count for count in told if count is not None]
        assert len(known) == len(told) and total is not None
        assert total - padding <= sum(known) <= total


def test_memory_laid_over_a_mapping_is_anonymous_and_in_ram(model: Path) -> None:
    """Its file's pages are not in the page cache."""

    def copies(pages: Range) -> None:
        overlay(Range(pages.start + 4096, pages.start + 6 * MIB))
        libc.mlock(pages.start + 3 * MIB, 3 * MIB)

    cells = of_child(model, copies)
    assert cells[EXPERT].backing == {"file": 0, "anonymous": 4 * MIB - 100, "device": 0}
    assert cells[EXPERT].resident_bytes == cells[EXPERT].touched_bytes == 4 * MIB - 100
    assert cells[EXPERT].locked_bytes == 3 * MIB
    assert cells[ATTN].backing == {"file": 3996, "anonymous": 2 * MIB - 3996, "device": 0}
    assert cells[ATTN].touched_bytes == 2 * MIB - 3996
    assert cells[EMBD].backing == {"file": 2 * MIB - 5, "anonymous": 0, "device": 0}
    assert cells[EMBD].touched_bytes == 0


def test_a_mapping_that_is_laid_over_whole_is_found_where_the_worker_says(model: Path) -> None:
    assert of_child(model, overlay)[EXPERT].touched_bytes == 4 * MIB - 100
    unknown = of_child(model, overlay, at=False)
    assert unknown[EXPERT] == Cell(EXPERT, 4 * MIB - 100, None, None, None, None)


def test_what_the_worker_loaded_elsewhere_is_not_looked_for_in_the_files(model: Path) -> None:
    attn, expert, embd = extents(model)
    on_device = replace(expert, elsewhere=Backing.DEVICE)
    copied = replace(embd, elsewhere=Backing.ANONYMOUS)
    with mapped(model) as pages, FileProbe([model]) as probe:
        touch(pages)
        cells = class_map(os.getpid(), [attn, on_device, copied], probe, {model: pages.start})
    by_place = {cell.place: cell for cell in cells}
    assert by_place[ATTN].touched_bytes == 2 * MIB
    size = 4 * MIB - 100
    backing = {Backing.FILE: 0, Backing.ANONYMOUS: 0, Backing.DEVICE: size}
    assert by_place[EXPERT] == Cell(EXPERT, size, backing, 0, 0, 0)
    size = 2 * MIB - 5
    backing = {Backing.FILE: 0, Backing.ANONYMOUS: size, Backing.DEVICE: 0}
    assert by_place[EMBD] == Cell(EMBD, size, backing, None, None, None)


def test_before_the_worker_maps_anything_and_without_proc_all_but_sizes_is_unknown(
    model: Path, tmp_path: Path
) -> None:
    with forked(lambda: None) as pid, FileProbe([model]) as probe:
        untold = class_map(pid, extents(model), probe, {})
        elsewhere = class_map(pid, extents(model), probe, {model: 1 << 40})
    nowhere = ProcFS(tmp_path / "nowhere")
    with mapped(model) as pages, FileProbe([model], nowhere) as probe:
        hidden = class_map(os.getpid(), extents(model), probe, {model: pages.start}, nowhere)
    unknown = [Cell(e.place, len(e.bytes), None, None, None, None) for e in extents(model)]
    for cells in (untold, elsewhere, hidden):
        assert sorted(cells, key=lambda c: c.bytes) == sorted(unknown, key=lambda c: c.bytes)


@root_only
def test_of_a_foreign_file_ram_is_known_only_of_what_is_touched_whole() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = write_file(Path(folder) / "model", 8 * MIB)
        path.chmod(0o644)

        def ask() -> dict[Place, Cell]:
            return of_child(path, lambda pages: touch(Range(pages.start, pages.start + 2 * MIB)))

        # Nothing maps it any more, so that neighbours are not mapped with what is touched.
        drop_cache(path)
        cells = as_user(NOBODY, ask)
    assert cells[ATTN].touched_bytes == 2 * MIB - 100 and cells[ATTN].resident_bytes is None
    assert (cells[EXPERT].touched_bytes, cells[EXPERT].resident_bytes) == (0, None)
    assert cells[EXPERT].locked_bytes == 0


def test_to_look_at_a_sparse_giant_brings_nothing_in(tmp_path: Path) -> None:
    giant = tmp_path / "giant"
    with giant.open("wb") as file:
        file.truncate(13 << 30)
    with mapped(giant) as pages, FileProbe([giant]) as probe:
        touch(Range(pages.end - MIB, pages.end))
        whole = [Extent(ATTN, giant, Range(0, 13 << 30))]
        for _ in range(2):
            (cell,) = class_map(os.getpid(), whole, probe, {giant: pages.start})
            assert cell.touched_bytes is not None and cell.resident_bytes is not None
            assert MIB <= cell.touched_bytes <= cell.resident_bytes <= 16 * MIB
