"""Everything that /metrics shows. The names mean what vLLM's of the same name mean."""

from __future__ import annotations

import errno as errnos

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics import disable_created_metrics

from residency.class_map import Cell
from residency.ledger import Ledger
from server.calls import LoadedModel
from server.collector import ModelCollector
from server.errors import ModelNotFound
from server.ledgers import Ledgers
from server.protocol import Timings
from server.token_series import TokenSeries

# From a cached prompt on a small model to a cold load of a large one from a slow disk.
_FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
# From a tiny model on a fast CPU to one that re-reads its weights from disk for each token.
_TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 10)
_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
_QUEUE_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
# From a warm model, which has none, to a large one that comes in page by page.
_FAULT_BUCKETS = (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
# From a page to the whole of a large model.
_READ_BUCKETS = (0, *(4096 << 2 * n for n in range(13)))


class Metrics:
    """Observations belong to the event loop's thread; render and ledger may run in others."""

    def __init__(self, ledgers: Ledgers) -> None:
        # Creation times of every series would double the text, and nobody reads them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._ledgers = ledgers
        self._models = ModelCollector(ledgers)
        self.registry.register(self._models)
        self.show = self._models.show
        self._tokens = TokenSeries(_TOKEN_BUCKETS)
        self.registry.register(self._tokens)
        self.next_tokens = self._tokens.came
        self.generated = self._tokens.generated
        self._requests = self._counter(
            "corral_requests",
            "Requests that ended, by HTTP status; 499 if the client went away",
            "endpoint",
            "status",
        )
        self._first_token = self._histogram(
            "corral_time_to_first_token_seconds",
            "Seconds from a request's arrival to its first text, with queue and load",
            _FIRST_TOKEN_BUCKETS,
        )
        self._duration = self._histogram(
            "corral_request_duration_seconds",
            "Seconds from a request's arrival to its end, of those that ended with 200",
            _REQUEST_BUCKETS,
        )
        self._queue = self._histogram(
            "corral_queue_seconds",
            "Seconds from a request's arrival until its worker got it, with the load",
            _QUEUE_BUCKETS,
        )
        self._faults = self._histogram(
            "corral_request_major_faults",
            "Faults of the worker that had to read from disk while a request ran",
            _FAULT_BUCKETS,
        )
        self._reads = self._histogram(
            "corral_request_read_bytes",
            "Bytes that the worker had read from disk while a request ran",
            _READ_BUCKETS,
        )
        self._prompt_tokens = self._counter(
            "corral_prompt_tokens",
            "Prompt tokens of generations that a worker accepted, and tokens that were embedded",
        )
        self._prefix_queries = self._counter(
            "corral_prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache"
        )
        self._prefix_hits = self._counter(
            "corral_prefix_cache_hits", "Prompt tokens that the prefix cache spared computing"
        )
        self._pin_failures = self._counter(
            "corral_pin_failures", "Attempts to lock weights in RAM that failed", "errno"
        )
        self._by_model = (
            self._requests,
            self._first_token,
            self._duration,
            self._queue,
            self._faults,
            self._reads,
            self._prompt_tokens,
            self._prefix_queries,
            self._prefix_hits,
            self._pin_failures,
        )

    # -- observations ----------------------------------------------------------------------

    def submitted(self, model: str, queue_seconds: float) -> None:
        """A request was handed to its worker."""
        self._queue.labels(model).observe(queue_seconds)

    def accepted(self, model: str, prompt_tokens: int) -> None:
        """The worker runs it."""
        self._prompt_tokens.labels(model).inc(prompt_tokens)
        self._prefix_queries.labels(model).inc(prompt_tokens)
        self._prefix_hits.labels(model)

    def embedded(self, model: str, tokens: int) -> None:
        """A request for embeddings has had so many tokens of its inputs read."""
        self._prompt_tokens.labels(model).inc(tokens)

    def reused(self, model: str, cached_tokens: int) -> None:
        """Of an accepted request's prompt so many tokens were not computed."""
        self._prefix_hits.labels(model).inc(cached_tokens)

    def first_token(self, model: str, seconds: float) -> None:
        self._first_token.labels(model).observe(seconds)

    def ended(self, model: str, endpoint: str, status: int, seconds: float) -> None:
        """A request got its end."""
        self._requests.labels(model, endpoint, status).inc()
        if status == 200:
            self._duration.labels(model).observe(seconds)

    def paged(self, model: str, timings: Timings) -> None:
        """What paging cost a request that ended with 200."""
        self._faults.labels(model).observe(timings.major_faults)
        if timings.read_bytes is not None:
            self._reads.labels(model).observe(timings.read_bytes)

    def pin_failed(self, model: str, errno: int) -> None:
        self._pin_failures.labels(model, errnos.errorcode.get(errno, errno)).inc()

    def forget(self, model: str) -> None:
        """The model is unloaded: drop its series."""
        for metric in self._by_model:
            metric.remove_by_labels({"model": model})
        self._tokens.forget(model)

    # -- reading ---------------------------------------------------------------------------

    def render(self) -> bytes:
        """The exposition text. Blocks on /proc: call it in a thread."""
        return generate_latest(self.registry)

    def ledger(self, name: str) -> Ledger:
        """The residency of a loaded model. Blocks on /proc: call it in a thread.

        Raises ModelNotFound if it is not loaded, LedgerUnavailable.
        """
        return self._ledgers.sample(self._loaded(name))

    def class_map(self, name: str) -> list[Cell]:
        """Where the bytes of a loaded model are, by layer and class; else as ledger."""
        return self._ledgers.class_map(self._loaded(name))

    def _loaded(self, name: str) -> LoadedModel:
        model = self._models.model(name)
        if model is None:
            raise ModelNotFound(f"{name} is not loaded")
        return model

    def names(self) -> list[str]:
        """Every metric there is, as it is written in a query (histograms without suffix)."""
        families = self.registry.collect()
        return sorted(f.name + "_total" * (f.type == "counter") for f in families)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(name, help, ["model", *labels], registry=self.registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help, ["model"], buckets=buckets, registry=self.registry)
