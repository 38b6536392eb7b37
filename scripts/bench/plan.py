"""What is measured: the scenarios, the figures they give, and the marks set for them."""

from __future__ import annotations

from dataclasses import dataclass

from bench.options import Options


@dataclass(frozen=True)
class Metric:
    field: str
    """Of Figures."""
    label: str
    unit: str
    more_is_better: bool


DECODE = Metric("decode", "decode", "tok/s", True)
TOTAL = Metric("total", "all streams", "tok/s", True)
TTFT = Metric("ttft_p50", "TTFT p50", "ms", False)
ITL_P50 = Metric("itl_p50", "ITL p50", "ms", False)
ITL_P99 = Metric("itl_p99", "ITL p99", "ms", False)


@dataclass(frozen=True)
class Figures:
    """Of one scenario in one round; the unit is the metric's."""

    decode: float
    """Of a stream after its first token; the median of the streams."""
    total: float
    """Generated tokens by the time from the first request to the last token."""
    ttft_p50: float
    itl_p50: float
    itl_p99: float
    prompt_tokens: float
    """Mean of a request, as the next."""
    cached_tokens: float


@dataclass(frozen=True)
class Row:
    """A figure that the table shows."""

    metric: Metric
    mark: float | None = None
    """The ratio to llama-server that is wanted: at least, or at most where less is better."""


@dataclass(frozen=True)
class Wave:
    """Streams that start together; again with new prompts as often as `times` says."""

    name: str
    rows: tuple[Row, ...]
    streams: int
    prompt_tokens: int
    """Without the shared prefix."""
    max_tokens: int
    times: int = 1
    shared_tokens: int = 0
    """A prefix of all prompts, computed before the clock runs."""


@dataclass(frozen=True)
class Arrival:
    """A long prompt arrives among streams that are running."""

    name: str
    rows: tuple[Row, ...]
    streams: int
    prompt_tokens: int
    """Of the running streams."""
    max_tokens: int
    """Of the running streams, more than they get before they are cut off."""
    arriving_tokens: int


Scenario = Wave | Arrival

_STREAMS = (Row(TOTAL, 1.05), Row(TTFT), Row(ITL_P50), Row(ITL_P99))
_ONE = (Row(DECODE, 1.00), Row(TTFT, 1.05), Row(ITL_P50), Row(ITL_P99))
_PREFILL = (Row(TTFT, 1.05), Row(TOTAL))
_SHARED = (Row(TTFT, 1.00), Row(TOTAL))
_ARRIVAL = (Row(ITL_P99, 0.80), Row(ITL_P50), Row(TTFT))

# Of a size that gives a minute for each server and round on two cores, 135 million parameters.
FULL: tuple[Scenario, ...] = (
    Wave("1 stream", _ONE, 1, 64, 48, times=4),
    Wave("4 streams", _STREAMS, 4, 64, 48),
    Wave("8 streams", _STREAMS, 8, 64, 40),
    Wave("16 streams", _STREAMS, 16, 64, 32),
    Wave("long prompt, 1 stream", _PREFILL, 1, 512, 16, times=2),
    Wave("long prompts, 4 streams", (Row(TTFT), Row(TOTAL)), 4, 512, 16),
    Wave("shared prefix, 1 stream", _SHARED, 1, 32, 16, times=4, shared_tokens=512),
    Wave("shared prefix, 4 streams", _SHARED, 4, 32, 16, times=2, shared_tokens=512),
    Arrival("4,000 tokens arrive at 4 streams", _ARRIVAL, 4, 64, 2048, 4000),
)
QUICK: tuple[Scenario, ...] = (
    Wave("1 stream", _ONE, 1, 32, 12, times=2),
    Wave("4 streams", _STREAMS, 4, 32, 6),
    Wave("shared prefix, 1 stream", _SHARED, 1, 16, 6, times=2, shared_tokens=64),
    Arrival("256 tokens arrive at 2 streams", _ARRIVAL, 2, 32, 512, 256),
)


def plan(options: Options) -> tuple[Scenario, ...]:
    """Only what the slots have room for."""
    scenarios = QUICK if options.quick else FULL
    return tuple(each for each in scenarios if _slots(each) <= options.slots)


def _slots(scenario: Scenario) -> int:
    return scenario.streams + isinstance(scenario, Arrival)
