"""From touched addresses to runs of files, and from kept runs to what is read again."""

from __future__ import annotations

from residency.libc import PAGE_BYTES
from residency.ranges import Range
from residency.read_order import FilePart
from residency.working_set import file_runs, replay_order, runs_within

PAGE = PAGE_BYTES


def test_touched_addresses_become_offsets_of_their_files() -> None:
    first, second = Range(10 * PAGE, 20 * PAGE), Range(40 * PAGE, 45 * PAGE + 100)
    touched = [
        Range(12 * PAGE, 13 * PAGE),
        # Two mappings side by side are two files all the same.
        Range(19 * PAGE, 41 * PAGE),
        # A page table knows whole pages, a file its bytes.
        Range(44 * PAGE, 46 * PAGE),
    ]
    assert file_runs(touched, [first, second]) == [
        [(2 * PAGE, 3 * PAGE), (9 * PAGE, 10 * PAGE)],
        [(0, PAGE), (4 * PAGE, 5 * PAGE + 100)],
    ]


def test_a_file_that_nobody_touched_has_no_runs_and_keeps_its_place() -> None:
    files = [Range(0, 10 * PAGE), Range(10 * PAGE, 20 * PAGE)]
    assert file_runs([Range(12 * PAGE, 13 * PAGE)], files) == [[], [(2 * PAGE, 3 * PAGE)]]


def test_what_cannot_be_read_of_these_files_is_left_out() -> None:
    kept = [[(-5, 5), (0, 10), (7, 7), (9, 8), (90, 101), (90, 100)], [(0, 51)], [(0, 1)]]
    assert runs_within(kept, [100, 50]) == [[Range(0, 10), Range(90, 100)], []]


def test_a_replay_goes_through_each_file_once_and_fills_small_gaps() -> None:
    runs = [[Range(50, 60), Range(0, 10), Range(15, 20)], [Range(5, 6)]]
    assert replay_order(runs, [], max_gap=5) == [
        FilePart(0, Range(0, 20)),
        FilePart(0, Range(50, 60)),
        FilePart(1, Range(5, 6)),
    ]


def test_what_is_read_anyway_is_not_read_twice() -> None:
    read = [FilePart(0, Range(2 * PAGE + 100, 4 * PAGE - 100)), FilePart(1, Range(0, 9 * PAGE))]
    assert replay_order([[Range(0, 6 * PAGE)], [Range(0, PAGE)]], read, max_gap=0) == [
        FilePart(0, Range(0, 2 * PAGE)),
        FilePart(0, Range(4 * PAGE, 6 * PAGE)),
    ]
