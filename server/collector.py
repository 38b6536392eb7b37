"""The metrics that are read off the loaded models at each scrape; see metrics.py for the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.calls import LoadedModel
from server.ledgers import Ledgers
from server.readings import Reading, Readings

_LEDGER_GAUGES: Mapping[str, tuple[str, str]] = {
    "resident_bytes": (
        "corral_resident_bytes",
        "Bytes of the model's mapped weights in physical memory, whoever brought them there",
    ),
    "touched_bytes": (
        "corral_touched_bytes",
        "Bytes of the model's mapped weights in its worker's page tables",
    ),
    "locked_bytes": (
        "corral_locked_bytes",
        "Bytes of the model's mapped weights that its worker has locked in RAM",
    ),
    "rss_bytes": (
        "corral_process_rss_bytes",
        "Bytes of physical memory in the page tables of the model's worker process",
    ),
}
"""Field of the ledger: name and help of its gauge."""


class ModelCollector(Collector):
    """Samples what show() last told of. What is unknown has no series.

    show() belongs to the event loop's thread, the rest to any.
    """

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._readings = Readings(ledgers)
        self._models: tuple[LoadedModel, ...] = ()
        self._waiting: Mapping[str, int] = {}

    def show(self, models: Iterable[LoadedModel], waiting: Mapping[str, int]) -> None:
        """The models that have a worker, and how many requests wait for which model."""
        self._models, self._waiting = tuple(models), waiting
        self._ledgers.follow(self._models)

    def model(self, name: str) -> LoadedModel | None:
        return next((model for model in self._models if model.spec.name == name), None)

    def collect(self) -> Iterable[Metric]:
        models, waiting = self._models, self._waiting
        yield from _serving(models, waiting)
        yield _weights(models)
        yield _modes(models)
        yield from _residency(self._readings.read(models))


def _gauge(name: str, help: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help, labels=labels)


def _serving(models: tuple[LoadedModel, ...], waiting: Mapping[str, int]) -> Iterable[Metric]:
    loaded = _gauge("corral_models_loaded", "Models that are loaded and serve")
    running = _gauge("corral_requests_running", "Requests that a worker is serving", "model")
    queued = _gauge(
        "corral_requests_waiting", "Requests and loads that wait in the daemon", "model"
    )
    loading = _gauge("corral_model_load_seconds", "Seconds the worker took to load it", "model")
    loaded.add_metric([], sum(model.ready is not None for model in models))
    for model in models:
        name = model.spec.name
        running.add_metric([name], model.running)
        if model.ready is not None:
            loading.add_metric([name], model.ready.load_seconds)
    names = {model.spec.name for model in models} | waiting.keys()
    for name in sorted(names):
        queued.add_metric([name], waiting.get(name, 0))
    return loaded, running, queued, loading


def _weights(models: tuple[LoadedModel, ...]) -> Metric:
    weights = _gauge(
        "corral_weight_bytes",
        "Bytes of the model's weights, by what backs them",
        "model",
        "backing",
    )
    for model in models:
        if model.ready is not None:
            for backing in ("file", "anonymous", "device"):
                size = getattr(model.ready.weights, backing)
                weights.add_metric([model.spec.name, backing], size)
    return weights


def _modes(models: tuple[LoadedModel, ...]) -> Metric:
    modes = _gauge(
        "corral_weight_residency_info",
        "1, with the weight residency mode of the loaded model",
        "model",
        "mode",
    )
    for model in models:
        modes.add_metric([model.spec.name, model.spec.load.residency], 1)
    return modes


def _residency(readings: Mapping[str, Reading]) -> Iterable[Metric]:
    known = {model: each.ledger for model, each in readings.items() if each.ledger is not None}
    for field, (name, help) in _LEDGER_GAUGES.items():
        gauge = _gauge(name, help, "model")
        for model, ledger in known.items():
            if (value := getattr(ledger, field)) is not None:
                gauge.add_metric([model], value)
        yield gauge
    huge = _gauge(
        "corral_huge_bytes", "Bytes of the model's weights in huge pages, by kind", "model", "kind"
    )
    faults = CounterMetricFamily(
        "corral_major_faults",
        "Faults of the model's worker process that had to read from disk",
        labels=["model"],
    )
    for model, ledger in known.items():
        if ledger.huge_bytes is not None and ledger.huge_anonymous_bytes is not None:
            huge.add_metric([model, "file"], ledger.huge_bytes - ledger.huge_anonymous_bytes)
            huge.add_metric([model, "anonymous"], ledger.huge_anonymous_bytes)
        if ledger.major_faults is not None:
            faults.add_metric([model], ledger.major_faults)
    yield from (huge, faults, _probes(readings), _ages(readings))


def _probes(readings: Mapping[str, Reading]) -> Metric:
    probes = _gauge(
        "corral_residency_probe_info",
        "1, with the source that corral_resident_bytes was learned from",
        "model",
        "source",
    )
    for model, each in readings.items():
        probes.add_metric([model, each.ledger.probe if each.ledger else "unknown"], 1)
    return probes


def _ages(readings: Mapping[str, Reading]) -> Metric:
    ages = _gauge(
        "corral_residency_sample_age_seconds",
        "Seconds since the model's residency was sampled; a large one is sampled beside the scrape",
        "model",
    )
    for model, each in readings.items():
        if each.ledger is not None:
            ages.add_metric([model], each.age)
    return ages
