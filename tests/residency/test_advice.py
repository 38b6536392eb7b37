"""Advice reaches the kernel over the whole of each range, and a refusal comes back."""

import errno
import time
from pathlib import Path

import pytest
from page_files import MIB, drop_cache, linux_only, mapped, touch, write_file

from residency.advice import advise
from residency.file_cache import FileProbe
from residency.libc import PAGE_BYTES
from residency.modes import Advice
from residency.ranges import Range

pytestmark = linux_only


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    path = write_file(tmp_path / "file", 64 * MIB)
    drop_cache(path)
    return path


def test_willneed_reads_all_of_a_range_and_no_more(cold: Path) -> None:
    """One call alone would stop at the device's read-ahead."""
    with FileProbe([cold]) as probe, mapped(cold) as pages:
        wanted = Range(pages.start + MIB + 5, pages.start + 49 * MIB + 5)
        assert advise([wanted], Advice.WILLNEED) == []
        asked = 48 * MIB + PAGE_BYTES
        deadline = time.monotonic() + 20
        while probe.resident_bytes()[0] != asked and time.monotonic() < deadline:
            time.sleep(0.01)
        assert probe.resident_bytes()[0] == asked


def test_random_keeps_the_neighbours_of_a_touched_page_out(cold: Path) -> None:
    with FileProbe([cold]) as probe, mapped(cold) as pages:
        assert advise([Range(pages.start + 1, pages.end - 1)], Advice.RANDOM) == []
        for at in (0, 32 * MIB, 64 * MIB - PAGE_BYTES):
            touch(Range(pages.start + at, pages.start + at + PAGE_BYTES))
        assert probe.resident_bytes()[0] == 3 * PAGE_BYTES


def test_a_refusal_is_reported_and_the_other_ranges_are_served(cold: Path) -> None:
    with mapped(cold) as gone:
        pass
    with FileProbe([cold]) as probe, mapped(cold) as pages:
        beyond = Range(1 << 60, (1 << 60) + PAGE_BYTES)
        errors = advise([beyond, pages], Advice.RANDOM)
        assert [error.errno for error in errors] == [errno.ENOMEM]
        assert "madvise" in str(errors[0])
        touch(Range(pages.start, pages.start + PAGE_BYTES))
        assert probe.resident_bytes()[0] == PAGE_BYTES
    assert [error.errno for error in advise([gone], Advice.WILLNEED)] == [errno.ENOMEM]
