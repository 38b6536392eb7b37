"""Interval arithmetic agrees with plain sets of integers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from residency.ranges import (
    Range,
    align_outward,
    batches,
    bound_runs,
    intersect,
    join,
    slices,
    subtract,
    total,
)

runs = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda t: Range(t[0], t[0] + t[1])),
    max_size=12,
)
units = st.integers(1, 9)


def points(ranges: list[Range]) -> set[int]:
    return {i for run in ranges for i in range(run.start, run.end)}


def assert_normal(ranges: list[Range]) -> None:
    assert all(run.start < run.end for run in ranges)
    assert all(a.end < b.start for a, b in pairwise(ranges))


@given(runs)
def test_join_keeps_the_points(given_runs: list[Range]) -> None:
    joined = join(given_runs)
    assert_normal(joined)
    assert points(joined) == points(given_runs)
    assert total(joined) == len(points(given_runs))


@given(runs, st.integers(0, 8))
def test_join_fills_exactly_the_gaps_up_to_max_gap(given_runs: list[Range], gap: int) -> None:
    naive = points(given_runs)
    filled = set(naive)
    for start in naive:
        after = min((i for i in naive if i > start), default=start)
        if after - start - 1 <= gap:
            filled.update(range(start, after))
    assert points(join(given_runs, gap)) == filled


@given(runs, units)
def test_alignment_outward_holds_every_unit_touched(given_runs: list[Range], unit: int) -> None:
    aligned = align_outward(given_runs, unit)
    assert_normal(aligned)
    assert points(aligned) == {
        i for p in points(given_runs) for i in range(p // unit * unit, p // unit * unit + unit)
    }


@given(runs, runs)
def test_intersection(left: list[Range], right: list[Range]) -> None:
    common = intersect(left, right)
    assert_normal(common)
    assert points(common) == points(left) & points(right)


@given(runs, st.integers(1, 6))
def test_bounding_covers_all_with_the_least_filling(given_runs: list[Range], most: int) -> None:
    apart = join(given_runs)
    bounded = bound_runs(given_runs, most)
    gaps = sorted(b.start - a.end for a, b in pairwise(apart))
    assert_normal(bounded)
    assert len(bounded) == min(most, len(apart))
    assert points(bounded) >= points(given_runs)
    assert total(bounded) - total(apart) == sum(gaps[: len(apart) - len(bounded)])


@given(runs, units)
def test_slices_are_the_runs_in_order_and_none_is_longer(
    given_runs: list[Range], size: int
) -> None:
    pieces = list(slices(given_runs, size))
    assert all(0 < len(piece) <= size for piece in pieces)
    assert [i for piece in pieces for i in range(piece.start, piece.end)] == [
        i for run in given_runs for i in range(run.start, run.end)
    ]


@given(runs, units)
def test_batches_are_the_runs_in_order_and_as_full_as_slices_allow(
    given_runs: list[Range], size: int
) -> None:
    cut = list(batches(given_runs, size))
    pieces = [piece for batch in cut for piece in batch]
    assert pieces == list(slices(given_runs, size))
    assert all(0 < total(batch) <= size for batch in cut)
    assert all(total(a) + len(b[0]) > size for a, b in pairwise(cut))


def test_a_range_that_ends_before_it_starts_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        Range(2, 1)


@given(runs, runs)
def test_subtract_leaves_what_is_in_the_first_alone(left: list[Range], right: list[Range]) -> None:
    rest = subtract(left, right)
    assert_normal(rest)
    assert points(rest) == points(left) - points(right)
