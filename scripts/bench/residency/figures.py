"""What is measured: one placement of a model in one mode, and all placements of a run.

These are also the shape of the JSON. Sizes are bytes, times milliseconds, None is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cache(StrEnum):
    """Where the model's file is when the load begins, and what is known of it."""

    COLD = "cold"
    """Not in the page cache."""
    KEPT = "kept"
    """Not in the page cache, but an earlier daemon has left the working set of its requests."""
    WARM = "warm"
    """All of it in the page cache, as far as it fits."""


@dataclass(frozen=True)
class Moment:
    """What is in RAM at one moment."""

    rss: int
    """Of the whole worker process."""
    huge: int
    """Of rss, what is mapped as huge pages."""
    resident: int | None
    """Weights in RAM: mapped ones in the page cache, and copied ones."""
    locked: int | None
    page_cache: int | None
    """Of the model's files, whoever reads them."""


@dataclass(frozen=True)
class Cost:
    """What a phase took from the disk."""

    major_faults: int
    read_bytes: int


@dataclass(frozen=True)
class Figures:
    """Of one placement: a fresh worker process over freshly placed pages."""

    cached_before: int | None
    """Bytes of the model's files in the page cache when the load began."""
    kept: int
    """Bytes of the working set that the load had to replay."""
    load_ms: float
    """From the request to load to its answer."""
    load: Cost
    at_load: Moment
    first: Cost
    """Of the first request, as the next three."""
    prefill_ms: float
    generation_ms: float
    tokens_per_second: float
    rss_infer: int
    """The highest while the first request ran."""
    request_ms: tuple[float, ...]
    """Of each request, as the client saw it, the first one included."""
    request_at_ms: tuple[float, ...]
    """When each was sent, counted from the request to load."""
    prompt_tokens: tuple[int, ...]
    """Of each request, those that were computed and not reused."""
    idle: Moment
    """After the last request, once a pin under way has ended."""


@dataclass(frozen=True)
class Visit:
    """One mode in one round."""

    round: int
    mode: str
    cache: Cache
    figures: Figures | None
    error: str = ""
    """Why there are no figures."""


@dataclass(frozen=True)
class Result:
    """One run."""

    title: str
    about: tuple[str, ...]
    """What a reader has to know to believe the figures."""
    seed: int
    visits: tuple[Visit, ...]
