"""Samples the residency of loaded models, and keeps their files open for it as long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from manifests.errors import InvalidGGUF
from residency.class_map import Cell, class_map
from residency.file_cache import FileProbe
from residency.ledger import Ledger, sample
from residency.procfs import ProcessGone
from residency.ranges import Range
from server.calls import LoadedModel
from server.errors import ServingError
from server.extents import extents, mapped_at

log = logging.getLogger("corral.residency")

Sampler = Callable[[LoadedModel, FileProbe], Ledger]
"""May block on the kernel, never on the worker. Raises ProcessGone or OSError."""


class LedgerUnavailable(ServingError):
    """The model's residency cannot be sampled now."""

    status = 503
    code = "residency_unavailable"


class _SharedProbe:
    """A FileProbe that is closed when it is retired and no thread uses it any more."""

    def __init__(self, probe: FileProbe) -> None:
        self._probe = probe
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False

    @contextmanager
    def use(self) -> Iterator[FileProbe]:
        """Raises ProcessGone if it is retired."""
        with self._lock:
            if self._retired:
                raise ProcessGone("it was unloaded")
            self._users += 1
        try:
            yield self._probe
        finally:
            with self._lock:
                self._users -= 1
                unused = self._retired and self._users == 0
            if unused:
                self._probe.close()

    def retire(self) -> None:
        """Does not wait for a thread that uses it."""
        with self._lock:
            self._retired = True
            unused = self._users == 0
        if unused:
            self._probe.close()


class Ledgers:
    """follow and close belong to one thread; sample may be called from any.

    Opening reads /proc and the last close of a deleted file frees its blocks, so a thread does
    both, one after the other.
    """

    def __init__(
        self,
        sampler: Sampler | None = None,
        open_probe: Callable[[Sequence[Path]], FileProbe] = FileProbe,
    ) -> None:
        self._sampler = sampler or sample_worker
        self._open_probe = open_probe
        self._files = ThreadPoolExecutor(1, "corral-ledgers")
        self._probes: dict[int, Future[_SharedProbe | str]] = {}
        """By pid; text says why the files could not be opened."""

    def follow(self, models: Iterable[LoadedModel]) -> None:
        """Have the files of new models opened, those of models that are gone closed. At once."""
        current = {model.pid: model for model in models}
        for pid in self._probes.keys() - current.keys():
            self._files.submit(_retire, self._probes.pop(pid))
        for pid, model in current.items():
            if pid not in self._probes:
                self._probes[pid] = self._files.submit(self._open, model)

    def sample(self, model: LoadedModel) -> Ledger:
        """Blocks on the kernel. Raises LedgerUnavailable, also for one that is not followed."""
        with self._probe_of(model) as probe:
            return self._sampler(model, probe)

    def class_map(self, model: LoadedModel) -> list[Cell]:
        """Where its bytes are by layer and class; else as sample."""
        with self._probe_of(model) as probe:
            return class_map(model.pid, extents(model), probe, mapped_at(model))

    def close(self) -> None:
        """Waits until the files are closed, but for those that are being sampled."""
        self.follow(())
        self._files.shutdown()

    @contextmanager
    def _probe_of(self, model: LoadedModel) -> Iterator[FileProbe]:
        opening = self._probes.get(model.pid)
        if opening is None:
            raise _unavailable(model, "it was unloaded")
        probe = opening.result()
        if isinstance(probe, str):
            raise _unavailable(model, probe)
        try:
            with probe.use() as opened:
                yield opened
        except (ProcessGone, InvalidGGUF, OSError) as error:
            raise _unavailable(model, str(error)) from error

    def _open(self, model: LoadedModel) -> _SharedProbe | str:
        try:
            return _SharedProbe(self._open_probe(paths_of(model)))
        except OSError as error:
            log.warning("model=%s its residency will be unknown: %s", model.spec.name, error)
            return str(error)


def _retire(opened: Future[_SharedProbe | str]) -> None:
    probe = opened.result()
    if isinstance(probe, _SharedProbe):
        probe.retire()


def _unavailable(model: LoadedModel, why: str) -> LedgerUnavailable:
    return LedgerUnavailable(f"residency of {model.spec.name}: {why}")


def paths_of(model: LoadedModel) -> list[Path]:
    """The GGUF files of the model."""
    return [Path(path) for path in model.spec.load.paths]


def sample_worker(model: LoadedModel, probe: FileProbe) -> Ledger:
    """The ledger of the model's worker process."""
    ready = model.ready
    weights = ready.weights if ready else None
    return sample(
        model.pid,
        paths_of(model),
        weights.file + weights.anonymous + weights.device if weights else None,
        probe,
        anonymous_bytes=weights.anonymous if weights else None,
        copies=[Range(start, end) for start, end in ready.copies] if ready else (),
    )
