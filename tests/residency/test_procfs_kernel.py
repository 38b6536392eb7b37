"""/proc of live processes: what was touched, locked, and by whom."""

import os
import subprocess
import sys
import tracemalloc
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
    root_only,
    touch,
    write_file,
)

from residency import libc
from residency.procfs import PROC, FileMapping, ProcessGone, ProcUnavailable
from residency.ranges import Range, total

pytestmark = linux_only


def mapping_at(pages: Range, pid: int) -> FileMapping:
    identity = PROC.file_at("self", pages.start)
    assert identity is not None
    (found,) = [m for m in PROC.smaps(pid, {identity}) if m.addresses == pages]
    return found


def test_present_pages_of_a_sparse_giant_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """13 GB of addresses; the entries would be 27 MB."""
    giant = tmp_path / "giant"
    with giant.open("wb") as file:
        file.truncate(13 << 30)
    with mapped(giant) as pages:
        touched = Range(pages.start + (12 << 30), pages.start + (12 << 30) + MIB)
        touch(touched)
        tracemalloc.start()
        present = PROC.pagemap_present("self", [pages])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 * MIB
        assert any(run.start <= touched.start and touched.end <= run.end for run in present)
        assert total(present) <= 4 * MIB  # and the neighbours in a folio


def test_locked_is_whole_in_each_of_two_processes_that_share_pages(tmp_path: Path) -> None:
    """smaps' own Locked would be half of it."""
    with mapped(write_file(tmp_path / "file", MIB)) as pages:
        touch(pages)
        with forked(lambda: libc.mlock(pages.start, len(pages))) as child:
            assert mapping_at(pages, child).locked_bytes == MIB
            assert mapping_at(pages, os.getpid()).locked_bytes == 0
            assert mapping_at(pages, os.getpid()).rss_bytes == MIB
            assert PROC.status(child).locked_bytes == MIB


def test_major_faults_grow_by_what_waits_for_the_disk(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", MIB)
    drop_cache(path)
    before = PROC.major_faults("self")
    with mapped(path) as pages:
        libc.madvise(pages.start, len(pages), libc.MADV_RANDOM)
        touch(pages)
    assert PROC.major_faults("self") - before >= MIB // libc.PAGE_BYTES // 2


def test_an_ended_process_is_gone_reaped_or_not() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessGone):
        PROC.status(ended.pid)
    with pytest.raises(ProcessGone):
        PROC.pagemap_present(ended.pid, [Range(0, libc.PAGE_BYTES)])
    ended.wait()
    with pytest.raises(ProcessGone):
        PROC.status(ended.pid)


@root_only
def test_a_process_of_another_user_is_not_shown() -> None:
    def ask() -> str:
        try:
            PROC.smaps(os.getppid(), set())
        except ProcUnavailable as error:
            return str(error)
        return ""

    assert "smaps: Permission denied" in as_user(NOBODY, ask)
