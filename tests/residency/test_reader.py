"""The native reader on real files: which pages come, in which order, and what ends it."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from page_files import MIB, drop_cache, mapped, python, touch, write_file
from slow_disk import needs_slow_disk, slow_disk

from residency import libc
from residency.advice import advise
from residency.file_cache import FileProbe
from residency.modes import Advice
from residency.procfs import PROC
from residency.ranges import Range, total
from residency.read_order import FilePart
from residency.reader import Reader, open_reader
from server.worker.llama import READER_LIBRARY

PAGE = libc.PAGE_BYTES


def cached_bytes(path: Path, part: Range | None = None) -> int:
    """In RAM of the pages that hold this part of the file, or of all."""
    with mapped(path) as addresses:
        vector = libc.mincore(addresses.start, len(addresses))
    if part is not None:
        vector = vector[part.start // PAGE : -(-part.end // PAGE)]
    return PAGE * sum(byte & 1 for byte in vector)


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def passed(reader: Reader, n: int) -> bool:
    return reader.progress().passes == n


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    path = write_file(tmp_path / "weights", 24 * MIB)
    drop_cache(path)
    return path


@pytest.mark.parametrize("huge", [False, True])
def test_a_filesystem_that_refuses_advice_is_read_all_the_same(
    cold: Path, monkeypatch: pytest.MonkeyPatch, huge: bool
) -> None:
    def refused(*_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("os.posix_fadvise", refused)
    part = FilePart(0, Range(0, 4 * MIB))
    with open_reader(READER_LIBRARY, [cold], [part], huge=huge) as reader:
        until(lambda: passed(reader, 1))
        assert reader.progress().errno == 0
    assert cached_bytes(cold, part.bytes) == 4 * MIB


def test_it_reads_the_parts_and_no_neighbour(cold: Path) -> None:
    parts = [Range(9 * MIB + 5, 12 * MIB + 77), Range(2 * MIB, 2 * MIB + 1)]
    with open_reader(READER_LIBRARY, [cold], [FilePart(0, part) for part in parts]) as reader:
        until(lambda: passed(reader, 1))
        told = reader.progress()
    assert (told.bytes_read, told.errno, told.reading) == (total(parts), 0, False)
    assert reader.n_bytes == total(parts)
    # The last page of a part has come; those before it may still be on their way.
    until(lambda: cached_bytes(cold, parts[0]) == 3 * MIB + PAGE)
    assert cached_bytes(cold) == 3 * MIB + 2 * PAGE


def test_parts_of_several_files_are_read(tmp_path: Path) -> None:
    files = [write_file(tmp_path / name, MIB) for name in ("one", "two")]
    for file in files:
        drop_cache(file)
    with open_reader(READER_LIBRARY, files, [FilePart(1, Range(0, MIB))]) as reader:
        until(lambda: passed(reader, 1))
    until(lambda: cached_bytes(files[1]) == MIB)
    assert cached_bytes(files[0]) == 0


def test_it_reads_again_what_has_left_the_cache(cold: Path) -> None:
    whole = Range(0, 24 * MIB)
    with open_reader(READER_LIBRARY, [cold], [FilePart(0, whole)]) as reader:
        until(lambda: passed(reader, 1))
        drop_cache(cold)
        reader.again()
        until(lambda: passed(reader, 2))
        until(lambda: cached_bytes(cold) == len(whole))
        assert reader.progress().bytes_read == len(whole)


def huge_bytes(path: Path) -> int:
    """Of a mapping of this file that is touched everywhere."""
    with mapped(path) as addresses, FileProbe([path]) as probe:
        touch(addresses)
        identity = probe.identity(path)
        assert identity is not None
        return sum(mapping.huge_bytes for mapping in PROC.smaps("self", [identity]))


def test_a_file_is_read_into_huge_pages(cold: Path) -> None:
    """Also where the device's read-ahead is shorter than a huge page, as it is by default."""
    with mapped(cold) as addresses:
        assert advise([addresses], Advice.HUGEPAGE) == []
        touch(addresses)
    if not huge_bytes(cold):
        pytest.skip("this kernel or filesystem has no huge pages for files")
    drop_cache(cold)
    parts = [FilePart(0, Range(16 * MIB + 5, 24 * MIB)), FilePart(0, Range(7, 16 * MIB))]
    with open_reader(READER_LIBRARY, [cold], parts, huge=True) as reader:
        until(lambda: passed(reader, 1))
        told = reader.progress()
    assert (told.bytes_read, told.errno) == (24 * MIB - 5 - 7, 0)
    assert cached_bytes(cold) == 24 * MIB
    assert huge_bytes(cold) >= 22 * MIB


def test_a_file_without_the_bytes_ends_a_pass_into_huge_pages(cold: Path) -> None:
    os.truncate(cold, 10 * MIB)
    with open_reader(
        READER_LIBRARY, [cold], [FilePart(0, Range(MIB, 24 * MIB))], huge=True
    ) as reader:
        until(lambda: passed(reader, 1))
        told = reader.progress()
    assert (told.bytes_read, told.errno) == (9 * MIB, errno.ENODATA)


def test_a_file_cut_short_ends_the_pass_and_nothing_else(cold: Path) -> None:
    parts = [FilePart(0, Range(0, 4 * MIB)), FilePart(0, Range(8 * MIB, 24 * MIB))]
    os.truncate(cold, 10 * MIB)
    with open_reader(READER_LIBRARY, [cold], parts) as reader:
        until(lambda: passed(reader, 1))
        told = reader.progress()
    assert (told.bytes_read, told.errno) == (6 * MIB, errno.ENODATA)


def test_what_cannot_be_opened_is_named(cold: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="no-such-library"),
        open_reader(tmp_path / "no-such-library.so", [cold], []),
    ):
        pass
    with (
        pytest.raises(OSError, match="no-such-file"),
        open_reader(READER_LIBRARY, [tmp_path / "no-such-file"], []),
    ):
        pass


def test_it_leaves_no_file_open_and_no_thread(cold: Path) -> None:
    def held() -> tuple[int, int]:
        fds, threads = (list(Path("/proc/self", name).iterdir()) for name in ("fd", "task"))
        return len(fds), len(threads)

    before = held()
    with open_reader(READER_LIBRARY, [cold], [FilePart(0, Range(0, MIB))]):
        assert held() == (before[0] + 1, before[1] + 1)
    assert held() == before


_STOPPED = """
import sys, time
from pathlib import Path
from residency.ranges import Range
from residency.read_order import FilePart
from residency.reader import open_reader
library, file, last, first = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
parts = [FilePart(0, Range(last, last + first)), FilePart(0, Range(0, last))]
with open_reader(library, [file], parts, pieces_ahead=2) as reader:
    while reader.progress().bytes_read < first:
        time.sleep(0.001)
    began = time.monotonic()
print(time.monotonic() - began, reader.n_bytes)
"""


@needs_slow_disk
def test_it_keeps_the_order_and_stops_in_the_middle(cold: Path) -> None:
    """4 MiB/s: all of it takes 6 seconds, the pieces under way half of one."""
    first = Range(16 * MIB, 18 * MIB)
    with slow_disk(cold, 4 * MIB) as prefix:
        numbers = (str(first.start), str(len(first)))
        printed = python(_STOPPED, str(READER_LIBRARY), str(cold), *numbers, under=prefix)
    assert float(printed.split()[0]) < 3
    assert cached_bytes(cold, first) == len(first)
    assert cached_bytes(cold) <= len(first) + 4 * MIB


def test_chosen_weights_come_whole_without_their_neighbours(cold: Path) -> None:
    """As an expert lies: at any byte, in a mapping without read-ahead."""
    part = Range(9 * MIB + 5, 12 * MIB + 77)
    pages = -(-part.end // PAGE) - part.start // PAGE
    library = ctypes.CDLL(str(READER_LIBRARY))
    with mapped(cold) as addresses:
        assert advise([addresses], Advice.RANDOM) == []
        for _ in range(2):
            library.corral_read_chosen(
                ctypes.c_void_p(addresses.start + part.start), ctypes.c_size_t(len(part))
            )
            until(lambda: cached_bytes(cold, part) == pages * PAGE)
    assert cached_bytes(cold) == pages * PAGE
