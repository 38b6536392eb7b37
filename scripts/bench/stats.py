"""Percentiles, and the gaps between the tokens of a stream. Times and gaps are seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise


def percentile(values: Sequence[float], percent: float) -> float:
    """Interpolated between the two nearest ranks. Raises ValueError without values."""
    if not values:
        raise ValueError("no values to take a percentile of")
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def gaps(times: Iterable[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def gaps_within(times: Sequence[float], start: float, end: float) -> list[float]:
    """The gaps of a stream that goes on, as far as they meet the window.

    The one that is open at the end counts as long as it had lasted by then: a stream
    that stands still through the whole window has no later token to show it.
    """
    until_end = [time for time in times if time < end] + [end]
    return [later - earlier for earlier, later in pairwise(until_end) if later > start]
