"""The counters tell of every thread's faults and reads, and of nothing that was cached."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from page_files import MIB, drop_cache, linux_only, mapped, touch, write_file

from residency.paging import Paging, paging


@linux_only
def test_what_comes_from_the_disk_is_counted_and_what_is_cached_is_not(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", 8 * MIB)
    drop_cache(path)
    with mapped(path) as pages:
        before = paging()
        thread = threading.Thread(target=touch, args=(pages,))
        thread.start()
        thread.join()
        cold = paging().since(before)
    assert cold.major_faults > 0
    # The filesystem may read a little of its own on the way.
    assert cold.read_bytes is not None and 8 * MIB <= cold.read_bytes < 9 * MIB
    with mapped(path) as pages:
        before = paging()
        touch(pages)
        assert paging().since(before) == Paging(0, 0)


@pytest.mark.parametrize(
    ("before", "after", "between"),
    [
        (Paging(3, 10), Paging(5, 30), Paging(2, 20)),
        (Paging(3, None), Paging(5, None), Paging(2, None)),
    ],
)
def test_bytes_unknown_stay_unknown(before: Paging, after: Paging, between: Paging) -> None:
    assert after.since(before) == between
