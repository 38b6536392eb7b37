"""What is counted at each token: plain numbers, that become series at a scrape."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import INF, floatToGoString


@dataclass
class _Tokens:
    """Of one model."""

    gaps: list[int]
    """How many lie in each bucket, the last one without a bound."""
    seconds: float = 0
    """Of all gaps."""
    generated: int = 0


class TokenSeries(Collector):
    """The client library takes three locks to find and count one value in a histogram.

    collect() may run in any thread, the rest belongs to the event loop's.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: seconds, the upper ones of the buckets of the latency, rising."""
        self._bounds = bounds
        self._models: dict[str, _Tokens] = {}

    def generated(self, model: str, n: int) -> None:
        """n more tokens."""
        self._of(model).generated += n

    def came(self, model: str, seconds: float, n: int) -> None:
        """n tokens came together, that long after the one before."""
        tokens = self._of(model)
        tokens.gaps[bisect_left(self._bounds, seconds / n)] += n
        tokens.seconds += seconds

    def forget(self, model: str) -> None:
        self._models.pop(model, None)

    def collect(self) -> Iterable[Metric]:
        generated = CounterMetricFamily(
            "corral_generation_tokens", "Tokens that were generated", labels=["model"]
        )
        latency = HistogramMetricFamily(
            "corral_inter_token_latency_seconds",
            "Seconds between consecutive tokens of a request, as their text comes",
            labels=["model"],
        )
        names = [floatToGoString(b) for b in (*self._bounds, INF)]  # type: ignore[no-untyped-call]
        for model, tokens in self._models.copy().items():
            generated.add_metric([model], tokens.generated)
            buckets = list(zip(names, itertools.accumulate(tokens.gaps), strict=True))
            latency.add_metric([model], buckets, tokens.seconds)
        return [generated, latency]

    def _of(self, model: str) -> _Tokens:
        tokens = self._models.get(model)
        if tokens is None:
            tokens = self._models[model] = _Tokens([0] * (len(self._bounds) + 1))
        return tokens
