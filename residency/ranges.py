"""Half-open integer intervals: the arithmetic of pages and runs, without the kernel."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, order=True, slots=True)
class Range:
    """Bytes from start up to, not including, end; addresses or file offsets."""

    start: int
    end: int

    def __post_init__(self) -> None:
        assert 0 <= self.start <= self.end, self

    def __len__(self) -> int:
        return self.end - self.start


def total(runs: Iterable[Range]) -> int:
    """Bytes in all runs; what overlaps counts twice."""
    return sum(len(run) for run in runs)


def align_outward(runs: Iterable[Range], unit: int) -> list[Range]:
    """Every unit (a page) that holds a byte of the runs, normalised."""
    return join(Range(run.start // unit * unit, -(-run.end // unit) * unit) for run in runs if run)


def join(runs: Iterable[Range], max_gap: int = 0) -> list[Range]:
    """Sorted and disjoint, without empty runs; gaps of at most max_gap bytes are filled."""
    joined: list[Range] = []
    for run in sorted(runs):
        if not run:
            continue
        if joined and run.start - joined[-1].end <= max_gap:
            joined[-1] = Range(joined[-1].start, max(joined[-1].end, run.end))
        else:
            joined.append(run)
    return joined


def bound_runs(runs: Iterable[Range], max_runs: int) -> list[Range]:
    """At most max_runs runs that cover these, the smallest gaps filled first."""
    apart = join(runs)
    if len(apart) <= max_runs:
        return apart
    gaps = ((after.start - before.end, i) for i, (before, after) in enumerate(pairwise(apart), 1))
    cuts = sorted(i for _, i in heapq.nlargest(max_runs - 1, gaps))
    return [
        Range(apart[first].start, apart[last - 1].end)
        for first, last in pairwise([0, *cuts, len(apart)])
    ]


def intersect(left: Iterable[Range], right: Iterable[Range]) -> list[Range]:
    """The bytes that lie in both, normalised."""
    a, b = join(left), join(right)
    common: list[Range] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i].start, b[j].start), min(a[i].end, b[j].end)
        if start < end:
            common.append(Range(start, end))
        if a[i].end <= b[j].end:
            i += 1
        else:
            j += 1
    return common


def subtract(left: Iterable[Range], right: Iterable[Range]) -> list[Range]:
    """The bytes of left that do not lie in right, normalised."""
    rest: list[Range] = []
    taken = join(right)
    i = 0
    for run in join(left):
        start = run.start
        while i < len(taken) and taken[i].end <= start:
            i += 1
        j = i
        while j < len(taken) and taken[j].start < run.end:
            if start < taken[j].start:
                rest.append(Range(start, taken[j].start))
            start = taken[j].end
            j += 1
        if start < run.end:
            rest.append(Range(start, run.end))
    return rest


def slices(runs: Sequence[Range], slice_bytes: int) -> Iterator[Range]:
    """The runs in order, cut into pieces of at most slice_bytes."""
    for run in runs:
        for start in range(run.start, run.end, slice_bytes):
            yield Range(start, min(start + slice_bytes, run.end))


def batches(runs: Sequence[Range], batch_bytes: int) -> Iterator[list[Range]]:
    """The runs in order, cut at batch_bytes, in lists of at most batch_bytes together."""
    batch: list[Range] = []
    filled = 0
    for piece in slices(runs, batch_bytes):
        if filled + len(piece) > batch_bytes:
            yield batch
            batch, filled = [], 0
        batch.append(piece)
        filled += len(piece)
    if batch:
        yield batch
