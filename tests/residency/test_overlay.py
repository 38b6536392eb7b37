"""Weights copied in place: the same bytes at the same addresses, and nothing left behind."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_groups import memory_group, needs_memory_cgroup
from page_files import (
    MIB,
    OWN_MOUNTS,
    drop_cache,
    linux_only,
    mapped,
    python,
    read_range,
    root_only,
    touch,
)

from residency import libc
from residency.file_cache import FileProbe
from residency.overlay import CopyFailed, copy_in_place
from residency.procfs import PROC
from residency.ranges import Range, align_outward, total

pytestmark = linux_only
PAGE = libc.PAGE_BYTES
SIZE = 9 * MIB + 1234
"""Ends inside a page."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.write_bytes(random.Random(1).randbytes(SIZE))
    drop_cache(path)
    return path


@pytest.fixture
def mapping(file: Path) -> Iterator[Range]:
    with mapped(file) as addresses:
        yield addresses


def pages(mapping: Range, start: int = 0, end: int = SIZE) -> Range:
    """The whole pages of a file range, where they are mapped."""
    (run,) = align_outward([Range(mapping.start + start, mapping.start + end)], PAGE)
    return run


def cached(path: Path) -> int | None:
    with FileProbe([path]) as probe:
        return probe.resident_bytes()[0]


def huge_bytes(run: Range) -> int:
    return sum(mapping.huge_bytes for mapping in PROC.smaps("self", (), [run]))


@pytest.mark.parametrize("piece", [MIB, 3 * MIB + 5 * PAGE, 64 * MIB])
@pytest.mark.parametrize("state", ["cold", "cached", "half cached", "touched"])
def test_the_bytes_stay_and_the_cache_goes(
    file: Path, mapping: Range, state: str, piece: int
) -> None:
    if state != "cold":
        read_range(file, Range(0, SIZE if state == "cached" else SIZE // 2))
    if state == "touched":
        touch(mapping)
    copy_in_place(file, mapping, [pages(mapping)], piece)
    assert cached(file) == 0
    assert ctypes.string_at(mapping.start, SIZE) == file.read_bytes()
    copies = PROC.smaps("self", (), [pages(mapping)])
    assert sum(len(m.addresses) for m in copies) == len(pages(mapping))
    assert sum(m.rss_bytes for m in copies) == len(pages(mapping)), "all was touched"


def test_only_the_runs_are_copied(file: Path, mapping: Range) -> None:
    runs = [pages(mapping, MIB + 5, 2 * MIB - 5), pages(mapping, 4 * MIB, SIZE)]
    copy_in_place(file, mapping, runs)
    assert ctypes.string_at(mapping.start, SIZE) == file.read_bytes()
    copies = PROC.smaps("self", (), runs)
    assert sum(len(m.addresses) for m in copies) == total(runs)
    assert PROC.file_at("self", mapping.start) == PROC.file_at("self", runs[0].end) is not None


def test_the_copy_lies_in_huge_pages_where_they_fit(file: Path, mapping: Range) -> None:
    copy_in_place(file, mapping, [pages(mapping)])
    unit = 2 * MIB
    run = pages(mapping)
    assert huge_bytes(run) == run.end // unit * unit - -(-run.start // unit) * unit > 0


def test_the_copy_cannot_be_written(file: Path, mapping: Range) -> None:
    copy_in_place(file, mapping, [pages(mapping)])
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.memset(mapping.start, 0, 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGSEGV


def test_no_run_is_no_work(file: Path, mapping: Range) -> None:
    copy_in_place(file, mapping, [])
    assert PROC.smaps("self", (), [pages(mapping)]) == []


def test_a_file_that_was_cut_short_is_an_error_and_no_crash(file: Path, mapping: Range) -> None:
    os.truncate(file, 5 * MIB + 17)
    with pytest.raises(CopyFailed, match=rf"{file} ends at byte {5 * MIB + 17} .*cut short"):
        copy_in_place(file, mapping, [pages(mapping)], 2 * MIB)


def test_a_file_that_took_the_path_is_not_copied(file: Path, mapping: Range) -> None:
    other = shutil.copyfile(file, file.with_name("other"))
    other.replace(file)
    with pytest.raises(CopyFailed, match="was replaced"):
        copy_in_place(file, mapping, [pages(mapping)])
    assert PROC.smaps("self", (), [pages(mapping)]) == []


def test_a_file_that_is_gone_is_named(file: Path, mapping: Range) -> None:
    file.unlink()
    with pytest.raises(CopyFailed, match=f"{file}: No such file"):
        copy_in_place(file, mapping, [pages(mapping)])


def test_a_filesystem_that_refuses_to_drop_pages_is_no_obstacle(
    file: Path, mapping: Range, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.posix_fadvise", refused)
    copy_in_place(file, mapping, [pages(mapping)])
    assert ctypes.string_at(mapping.start, len(mapping)) == file.read_bytes()


COPY = """
import ctypes, sys
from pathlib import Path
sys.path.insert(0, "tests")
from page_files import mapped
from residency import overlay
from residency.libc import PAGE_BYTES
from residency.ranges import align_outward
path = Path(sys.argv[1])
if "through the cache" in sys.argv:
    overlay._open_direct = lambda path: None
with mapped(path) as mapping:
    overlay.copy_in_place(path, mapping, align_outward([mapping], PAGE_BYTES))
    if "compare" in sys.argv:
        assert ctypes.string_at(mapping.start, len(mapping)) == path.read_bytes()
print("direct" if overlay._open_direct(path) is not None else "not direct")
"""


@root_only
def test_a_filesystem_without_direct_reads_is_read_through_the_cache(file: Path) -> None:
    mount = f"mkdir {file}.d && mount -t ramfs none {file}.d && cp {file} {file}.d/m"
    under = [*OWN_MOUNTS, "sh", "-c", f'{mount} && exec "$@"', "sh"]
    assert python(COPY, f"{file}.d/m", "compare", under=under) == "not direct\n"


@needs_memory_cgroup
@pytest.mark.parametrize("way", ["direct", "through the cache"])
def test_nothing_is_charged_twice_but_a_piece(tmp_path: Path, way: str) -> None:
    path = tmp_path / "big"
    with path.open("wb") as file:
        for _ in range(192):
            file.write(os.urandom(MIB))
    drop_cache(path)
    with memory_group("twice") as group:
        python(COPY, str(path), way, under=group.prefix)
        peak = group.number("max_usage_in_bytes")
    # A piece of 64 MiB at most, and 24 MiB for the interpreter.
    assert 192 * MIB < peak < (192 + 64 + 24) * MIB
