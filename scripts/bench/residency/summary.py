"""From the visits to what the tables and pictures show: medians over the rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.residency.figures import Cache, Figures, Visit
from bench.residency.options import SETTLED

WITHIN = 1.05
"""By how much a request may be slower than the warm asymptote and count as warm."""


@dataclass(frozen=True)
class Column:
    label: str
    of: Callable[[Figures], float | None]


@dataclass(frozen=True)
class Row:
    """One mode from one state of its file, over all rounds."""

    mode: str
    cache: Cache
    figures: tuple[Figures, ...]
    """Of the rounds in which it served."""
    errors: tuple[str, ...]

    def median(self, column: Column) -> float | None:
        """None without figures, or if one of them is unknown."""
        values = [column.of(each) for each in self.figures]
        known = [value for value in values if value is not None]
        return median(known) if known and len(known) == len(values) else None

    def request_ms(self) -> list[float]:
        """Of each request in its turn."""
        return [median(times) for times in zip(*(f.request_ms for f in self.figures), strict=True)]


def rows(visits: Sequence[Visit]) -> list[Row]:
    """In the order in which the first round came to the modes."""
    keys = dict.fromkeys((visit.mode, visit.cache) for visit in visits)
    return [_row(mode, cache, visits) for mode, cache in keys]


def _row(mode: str, cache: Cache, visits: Sequence[Visit]) -> Row:
    own = [visit for visit in visits if (visit.mode, visit.cache) == (mode, cache)]
    return Row(
        mode,
        cache,
        tuple(visit.figures for visit in own if visit.figures),
        tuple(visit.error for visit in own if visit.error),
    )


def asymptote(request_ms: Sequence[float]) -> float:
    """What a request takes when all it needs is there: the median of the last SETTLED ones."""
    return median(request_ms[-SETTLED:])


def until_warm(request_ms: Sequence[float]) -> float:
    """The first request that takes at most WITHIN times the asymptote, counted from 1; infinite
    if it is one of those that the asymptote is taken from."""
    limit = WITHIN * asymptote(request_ms)
    early = request_ms[: len(request_ms) - SETTLED]
    return next((n for n, ms in enumerate(early, 1) if ms <= limit), math.inf)


def warm_after_ms(figures: Figures) -> float:
    """From the request to load until that first one is sent."""
    first = until_warm(figures.request_ms)
    return math.inf if math.isinf(first) else figures.request_at_ms[int(first) - 1]


def start_ms(figures: Figures) -> float:
    """From the request to load to the end of the first answer, tokens in all."""
    return figures.load_ms + figures.prefill_ms + figures.generation_ms
