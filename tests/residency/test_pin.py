"""A pin locks what this process touched, in steps, and says how far it came and why."""

import errno
import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_files import (
    MIB,
    WITHOUT_IPC_LOCK,
    drop_cache,
    drops_rights,
    linux_only,
    mapped,
    python,
    read_range,
    root_only,
    touch,
    write_file,
)

from residency import libc
from residency.advice import advise
from residency.file_cache import FileProbe
from residency.modes import Advice
from residency.pin import (
    MAX_GAP_BYTES,
    PinJob,
    PinResult,
    pin_plan,
    touched_ranges,
    working_set,
)
from residency.procfs import PROC, ProcFS
from residency.ranges import Range, align_outward, intersect, total

pytestmark = linux_only
PAGE = libc.PAGE_BYTES


def pages(first: int, last: int) -> Range:
    return Range(first * PAGE, last * PAGE)


def run(job: PinJob) -> tuple[PinResult, int]:
    """The result, and the steps it took."""
    for steps in count(1):
        if (result := job.step()) is not None:
            return result, steps
    raise AssertionError


def locked_bytes() -> int:
    return PROC.status("self").locked_bytes


# -- the plan --------------------------------------------------------------------------

page_runs = st.lists(
    st.tuples(st.integers(0, 80), st.integers(1, 9)).map(lambda t: pages(t[0], t[0] + t[1])),
    max_size=10,
)


@given(page_runs, page_runs, st.integers(1, 5), st.integers(0, 3))
def test_a_plan_holds_all_that_was_touched_and_only_weights(
    touched: list[Range], weights: list[Range], max_runs: int, gap: int
) -> None:
    weights = align_outward(weights, PAGE)
    touched = intersect(touched, weights)
    plan = pin_plan(touched, weights, gap * PAGE, max_runs)
    assert intersect(plan, touched) == touched
    assert intersect(plan, weights) == plan
    assert len(plan) <= max_runs + max(0, len(weights) - 1)


def test_small_gaps_are_locked_too_and_wide_ones_are_not() -> None:
    gap = MAX_GAP_BYTES // PAGE
    near, far = pages(1 + gap, 2 + gap), pages(3 + 2 * gap, 4 + 2 * gap)
    plan = pin_plan([pages(0, 1), near, far], [pages(0, 1000)])
    assert plan == [pages(0, 2 + gap), far]


def test_a_hole_between_two_mappings_is_never_bridged() -> None:
    touched = [pages(0, 2), pages(3, 5)]
    assert pin_plan(touched, touched, max_runs=1) == touched


# -- what was touched ------------------------------------------------------------------


def test_of_a_wholly_cached_file_only_the_touched_part_counts(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", 64 * MIB)
    with FileProbe([path]) as probe, mapped(path) as weights:
        assert probe.resident_bytes()[0] == 64 * MIB
        assert touched_ranges([weights]) == []
        part = Range(weights.start + 10 * MIB, weights.start + 14 * MIB)
        touch(part)
        touched = touched_ranges([weights])
        assert intersect(touched, [part]) == [part]
        # The kernel maps the rest of a folio, at most 2 MiB, at either end.
        assert total(touched) <= len(part) + 4 * MIB
        assert touched_ranges([Range(part.end + 2 * MIB, weights.end)]) == []


def test_cold_pages_are_told_one_by_one(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", 8 * MIB)
    drop_cache(path)
    with mapped(path) as weights:
        advise([weights], Advice.RANDOM)
        wanted = [
            Range(weights.start + at, weights.start + at + PAGE)
            for at in range(0, 8 * MIB, 64 * PAGE)
        ]
        for page in wanted:
            touch(page)
        assert touched_ranges([weights]) == wanted


# -- the lock --------------------------------------------------------------------------


def test_a_job_locks_a_slice_a_step(tmp_path: Path) -> None:
    with mapped(write_file(tmp_path / "file", 8 * MIB)) as weights:
        runs = [
            Range(weights.start + 5, weights.start + MIB),
            Range(weights.start + 4 * MIB, weights.start + 7 * MIB),
        ]
        job = PinJob(runs, slice_bytes=MIB)
        before = locked_bytes()
        assert job.step() is None
        assert locked_bytes() - before == MIB
        result, steps = run(job)
        assert steps == 3
        assert locked_bytes() - before == 4 * MIB
        assert (result.bytes_asked, result.bytes_locked, result.n_runs) == (4 * MIB, 4 * MIB, 2)
        assert (result.errno, result.message) == (0, "")
        assert result.seconds > 0
        assert job.step() == result
    assert locked_bytes() == before


def test_nothing_to_lock_is_done_at_once() -> None:
    result = PinJob([]).step()
    assert result is not None
    assert (result.bytes_asked, result.bytes_locked, result.n_runs, result.errno) == (0, 0, 0, 0)


@pytest.mark.parametrize("read_ahead", [False, True])
def test_what_was_evicted_since_comes_back_locked(tmp_path: Path, read_ahead: bool) -> None:
    path = write_file(tmp_path / "file", 4 * MIB)
    drop_cache(path)
    with FileProbe([path]) as probe, mapped(path) as weights:
        advise([weights], Advice.RANDOM)
        result, _ = run(PinJob([weights], slice_bytes=MIB, read_ahead=read_ahead))
        assert result.bytes_locked == 4 * MIB
        assert probe.resident_bytes()[0] == 4 * MIB


def test_scattered_pages_are_locked_in_a_bounded_number_of_mappings(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", 4 * MIB)
    drop_cache(path)
    with mapped(path) as weights:
        advise([weights], Advice.RANDOM)
        for address in range(weights.start, weights.end, 8 * PAGE):
            touch(Range(address, address + PAGE))
        touched = touched_ranges([weights])
        assert len(touched) == 4 * MIB // (8 * PAGE)
        plan = pin_plan(touched, [weights], max_runs=50)
        before = PROC.n_mappings("self")
        result, _ = run(PinJob(plan))
        assert result.bytes_locked == result.bytes_asked >= total(touched)
        assert PROC.n_mappings("self") - before <= 2 * 50


def test_an_unmapped_or_cut_off_range_is_a_result(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", 2 * MIB)
    with mapped(path) as weights:
        with path.open("r+b") as file:
            file.truncate(MIB)
        result, _ = run(PinJob([weights], slice_bytes=MIB))
        assert (result.bytes_locked, result.errno) == (MIB, errno.ENOMEM)
        assert f"locked {MIB} of {2 * MIB} bytes: ENOMEM" in result.message
    assert run(PinJob([weights]))[0].errno == errno.ENOMEM


def test_nothing_is_tried_after_a_refusal(tmp_path: Path) -> None:
    with mapped(write_file(tmp_path / "file", MIB)) as weights:
        before = locked_bytes()
        unmapped = pages(1, 2)
        job = PinJob([unmapped, weights], slice_bytes=MIB)
        result = job.step()
        assert result is not None
        assert (result.errno, result.n_runs) == (errno.ENOMEM, 2)
        assert job.step() == result
        assert locked_bytes() == before


def test_a_refused_lock_is_a_result_also_where_proc_tells_no_limits(tmp_path: Path) -> None:
    made = tmp_path / "self"
    made.mkdir()
    (made / "status").write_text("VmRSS: 1 kB\nVmLck: 0 kB\nCapEff: 0\n")
    (made / "maps").write_text("")
    result = PinJob([pages(1, 2)], proc=ProcFS(tmp_path)).step()
    assert result is not None
    assert result.errno == errno.ENOMEM
    assert "ulimit -l" in result.message


def test_the_working_set_is_searched_for_and_locked_in_steps(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", 64 * MIB)
    drop_cache(path)
    with mapped(path) as weights:
        advise([weights], Advice.RANDOM)
        wanted = [
            Range(weights.start + at, weights.start + at + 8 * PAGE)
            for at in (0, 16 * MIB - 4 * PAGE, 50 * MIB)
        ]
        for part in wanted:
            touch(part)
        steps = working_set([weights], scan_bytes=16 * MIB)
        assert [next(steps) for _ in range(4)] == [None] * 4, "four slices are looked through"
        assert list(steps) == [wanted]


def test_what_is_held_already_needs_no_work(tmp_path: Path) -> None:
    with mapped(write_file(tmp_path / "file", 4 * MIB)) as weights:
        held = [Range(weights.start + MIB, weights.start + 2 * MIB)]
        before = locked_bytes()
        result, steps = run(PinJob([weights], slice_bytes=MIB, held=held))
        assert (result.bytes_asked, result.bytes_locked, steps) == (4 * MIB, 4 * MIB, 3)
        assert locked_bytes() - before == 3 * MIB, "what was said to be held was left alone"


# -- refusals of the real kernel -------------------------------------------------------

UNDER_A_LIMIT = """
import dataclasses, json, resource, sys
from pathlib import Path
sys.path.insert(0, "tests")
from page_files import mapped
from residency.locks import Locks
from residency.pin import PinJob
from residency.procfs import PROC
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
with mapped(Path(sys.argv[1])) as weights:
    job = PinJob([weights], slice_bytes=1 << 20)
    while (result := job.step()) is None:
        pass
    again = list(Locks([weights]).change_to([weights]))[-1]
    print(json.dumps([
        dataclasses.asdict(result), dataclasses.asdict(again), PROC.status("self").locked_bytes
    ]))
"""


def under_a_limit(path: Path, limit: int, under: Sequence[str]) -> Any:
    return json.loads(python(UNDER_A_LIMIT, str(path), str(limit), under=under))


@drops_rights
def test_a_limit_stops_the_pin_half_way_and_is_named(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", 4 * MIB)
    limit = 2 * MIB + MIB // 2
    result, again, counted = under_a_limit(path, limit, WITHOUT_IPC_LOCK)
    assert result["bytes_locked"] == counted == 2 * MIB
    assert result["bytes_asked"] == 4 * MIB
    assert result["errno"] == errno.ENOMEM
    assert f"locked {2 * MIB} of {4 * MIB} bytes: ENOMEM" in result["message"]
    assert f"RLIMIT_MEMLOCK is {limit} bytes" in result["message"]
    # All in one slice this time, which is refused as a whole; what is locked stays so.
    assert (again["errno"], again["bytes_locked"]) == (errno.ENOMEM, 2 * MIB)


@drops_rights
def test_no_right_to_lock_at_all_is_eperm(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", MIB)
    result, _, counted = under_a_limit(path, 0, WITHOUT_IPC_LOCK)
    assert (result["errno"], result["bytes_locked"], counted) == (errno.EPERM, 0, 0)
    assert "CAP_IPC_LOCK" in result["message"]


@root_only
def test_with_the_capability_the_limit_does_not_bind(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", MIB)
    result, _, counted = under_a_limit(path, 0, ())
    assert (result["errno"], result["bytes_locked"], counted) == (0, MIB, MIB)


OUT_OF_MAPPINGS = """
import os, sys
from pathlib import Path
sys.path.insert(0, "tests")
from page_files import mapped
from residency import libc
from residency.pin import PinJob
from residency.procfs import PROC
from residency.ranges import Range
filler = os.open(sys.argv[1], os.O_RDONLY)
with mapped(Path(sys.argv[1])) as weights:
    try:
        while True:  # mappings of one file at one offset never merge
            libc.mmap_file(filler, libc.PAGE_BYTES)
    except OSError:
        pass
    middle = Range(weights.start + libc.PAGE_BYTES, weights.start + 2 * libc.PAGE_BYTES)
    print(PinJob([middle]).step().message)
"""


@root_only
def test_a_process_out_of_mappings_is_told_so(tmp_path: Path) -> None:
    if PROC.max_mappings() > 300_000:
        pytest.skip(f"vm.max_map_count is {PROC.max_mappings()}: too many to use up in a test")
    message = python(OUT_OF_MAPPINGS, str(write_file(tmp_path / "file", MIB)))
    assert f"vm.max_map_count={PROC.max_mappings()}" in message


def test_reading_around_a_pin_does_not_enlarge_it(tmp_path: Path) -> None:
    """Another reader fills the page cache; the plan stays what was touched."""
    path = write_file(tmp_path / "file", 16 * MIB)
    drop_cache(path)
    with mapped(path) as weights:
        advise([weights], Advice.RANDOM)
        part = Range(weights.start + 4 * MIB, weights.start + 5 * MIB)
        touch(part)
        read_range(path, Range(0, 16 * MIB))
        assert pin_plan(touched_ranges([weights]), [weights]) == [part]
