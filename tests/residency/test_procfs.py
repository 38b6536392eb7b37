"""/proc is parsed as the kernel writes it: a made tree, with the odd cases."""

import struct
from pathlib import Path

import pytest

from residency.libc import PAGE_BYTES
from residency.procfs import FileId, ProcessGone, ProcFS, ProcUnavailable
from residency.ranges import Range

STATUS = """\
Name:\tworker
VmRSS:\t    8000 kB
VmLck:\t    4096 kB
CapEff:\t{capabilities}
"""

SMAPS_FIELDS = """\
Size:               {size} kB
Rss:                {rss} kB
Pss:                   1 kB
AnonHugePages:         0 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:      {huge} kB
Locked:                1 kB
VmFlags: rd mr me ms {flags}
"""


@pytest.fixture
def proc(tmp_path: Path) -> ProcFS:
    for pid in ("self", "7"):
        (tmp_path / pid).mkdir()
    return ProcFS(tmp_path)


def write(proc: ProcFS, name: str, text: str) -> None:
    (proc.root / "7" / name).write_text(text)


@pytest.mark.parametrize(("capabilities", "free"), [("0000000000004000", True), ("00ff", False)])
def test_status_in_bytes(proc: ProcFS, capabilities: str, free: bool) -> None:
    write(proc, "status", STATUS.format(capabilities=capabilities))
    status = proc.status(7)
    assert status.rss_bytes == 8000 * 1024
    assert status.locked_bytes == 4096 * 1024
    assert status.may_lock_freely is free


def test_a_zombie_has_no_memory(proc: ProcFS) -> None:
    write(proc, "status", "Name:\tworker\nState:\tZ (zombie)\nCapEff:\t0\n")
    with pytest.raises(ProcessGone, match="7"):
        proc.status(7)


@pytest.mark.parametrize("name", ["worker", "a b", "we) ird (x", ") 1 2 3 4 5 6 7 8 9 10"])
def test_major_faults_whatever_the_process_is_called(proc: ProcFS, name: str) -> None:
    write(proc, "stat", f"7 ({name}) S 1 7 7 0 -1 4194304 500 0 42 0 10 5 0 0 20 0\n")
    assert proc.major_faults(7) == 42


def test_smaps_of_the_wanted_files_alone(proc: ProcFS) -> None:
    def block(line: str, rss: int, huge: int, flags: str) -> str:
        return line + "\n" + SMAPS_FIELDS.format(size=64, rss=rss, huge=huge, flags=flags)

    write(
        proc,
        "smaps",
        block("10000-20000 r--s 00003000 fe:00 99    /m/a b: \\012x.gguf (deleted)", 48, 16, "lo")
        + block("20000-30000 r--s 00013000 fe:00 99    /m/a b: \\012x.gguf (deleted)", 8, 0, "rr")
        + block("30000-40000 r--s 00000000 fe:01 99    /m/other", 64, 0, "lo")
        + block("40000-50000 rw-p 00000000 00:00 0 ", 64, 0, "lo"),
    )
    first, second = proc.smaps(7, {FileId("fe:00", 99)})
    assert first.addresses == Range(0x10000, 0x20000)
    assert first.file_range == Range(0x3000, 0x13000)
    assert (first.rss_bytes, first.huge_bytes) == (48 * 1024, 16 * 1024)
    assert first.locked_bytes == 48 * 1024
    assert second.offset == 0x13000
    assert second.locked_bytes == 0


def test_the_file_at_an_address(proc: ProcFS) -> None:
    write(
        proc,
        "maps",
        "10000-20000 r--s 00000000 fe:00 99    /m/a\n20000-21000 rw-p 00000000 00:00 0 \n",
    )
    assert proc.file_at(7, 0x1FFFF) == FileId("fe:00", 99)
    assert proc.file_at(7, 0x20000) is None
    assert proc.file_at(7, 0x30000) is None
    assert proc.n_mappings(7) == 2


def test_present_pages_are_runs_of_the_present_bit(proc: ProcFS) -> None:
    swapped, present = 1 << 62, 1 << 63
    entries = [present, 0, present | 5, present, swapped, present]
    (proc.root / "7" / "pagemap").write_bytes(struct.pack("=6Q", *entries))

    def pages(first: int, last: int) -> Range:
        return Range(first * PAGE_BYTES, last * PAGE_BYTES)

    assert proc.pagemap_present(7, [pages(0, 6)]) == [pages(0, 1), pages(2, 4), pages(5, 6)]
    part = Range(PAGE_BYTES + 1, 3 * PAGE_BYTES - 1)
    assert proc.pagemap_present(7, [part]) == [pages(2, 3)]


def test_a_page_table_that_ends_at_once_is_that_of_an_ended_process(proc: ProcFS) -> None:
    write(proc, "pagemap", "")
    with pytest.raises(ProcessGone):
        proc.pagemap_present(7, [Range(0, PAGE_BYTES)])


def test_a_process_that_is_gone_and_a_proc_that_is_not_there(proc: ProcFS, tmp_path: Path) -> None:
    asks = ("status", "major_faults", "n_mappings")
    for ask in asks:
        with pytest.raises(ProcessGone):
            getattr(proc, ask)(8)
        with pytest.raises(ProcUnavailable):
            getattr(ProcFS(tmp_path / "nowhere"), ask)(8)


def test_what_this_kernel_does_not_tell_is_no_sign_of_an_ended_process(proc: ProcFS) -> None:
    """A kernel built without CONFIG_PROC_PAGE_MONITOR has no pagemap; some hide /proc/sys."""
    with pytest.raises(ProcUnavailable, match="pagemap"):
        proc.pagemap_present(7, [Range(0, PAGE_BYTES)])
    with pytest.raises(ProcUnavailable, match="max_map_count"):
        proc.max_mappings()
