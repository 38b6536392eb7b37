"""The ledgers for a scrape, which must not wait until the kernel has looked at a large model.

What that takes grows with the pages. To read smaps takes 3.5 ms for each GB in the page tables
if it lies in large folios, 75 ms if in single pages; mincore, where cachestat will not do,
12 ms for each GB of file (6.18).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

from residency.ledger import Ledger
from server.calls import LoadedModel
from server.ledgers import Ledgers, LedgerUnavailable, paths_of

# At most 10 ms by the figures above.
_AT_ONCE_BYTES = 128 << 20
# Of 10 ms for a scrape the rest takes 4 to 6. Enough for 13 GB by cachestat, if the worker has
# touched some hundred MB of them in large folios.
_PATIENCE_SECONDS = 0.003


@dataclass(frozen=True)
class Reading:
    ledger: Ledger | None
    """None: it could not be sampled."""
    age: float
    """Seconds since it was begun."""


@dataclass(frozen=True)
class _Sample:
    ledger: Ledger | None
    began: float


class Readings:
    """Samples small models at once. A large one is sampled beside the scrapes: each begins a
    sample, if none is under way, and takes the newest one there is.

    read may be called from any thread, but not from two at once.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        *,
        at_once_bytes: int = _AT_ONCE_BYTES,
        patience: float = _PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """at_once_bytes: of files that one read waits for. patience: seconds that it waits
        for the others, all together."""
        self._ledgers = ledgers
        self._at_once_bytes = at_once_bytes
        self._patience = patience
        self._clock = clock
        # Two, so that one model on a slow filesystem does not hold up all others.
        self._threads = ThreadPoolExecutor(2, "corral-sampling")
        self._running: dict[int, Future[_Sample]] = {}
        self._newest: dict[int, _Sample] = {}
        """Both by pid."""

    def read(self, models: Iterable[LoadedModel]) -> dict[str, Reading]:
        """By name, but for a large model that never has been sampled to the end."""
        deadline = self._clock() + self._patience
        small, large = self._split(models)
        self._keep(large)
        for model in large:
            if model.pid not in self._running:
                self._running[model.pid] = self._threads.submit(self._sample, model)
        samples = {model.spec.name: self._sample(model) for model in small}
        wait(self._running.values(), max(0.0, deadline - self._clock()))
        self._collect()
        samples |= {m.spec.name: self._newest[m.pid] for m in large if m.pid in self._newest}
        now = self._clock()
        return {name: Reading(each.ledger, now - each.began) for name, each in samples.items()}

    def _split(self, models: Iterable[LoadedModel]) -> tuple[list[LoadedModel], list[LoadedModel]]:
        """Those that are sampled at once, and the others."""
        small: list[LoadedModel] = []
        large: list[LoadedModel] = []
        left = self._at_once_bytes
        for size, model in sorted(((_file_bytes(m), m) for m in models), key=lambda pair: pair[0]):
            left -= size
            (large if left < 0 else small).append(model)
        return small, large

    def _keep(self, models: Iterable[LoadedModel]) -> None:
        """Forget what is known of other models."""
        pids = {model.pid for model in models}
        self._running = {pid: each for pid, each in self._running.items() if pid in pids}
        self._newest = {pid: each for pid, each in self._newest.items() if pid in pids}

    def _collect(self) -> None:
        for pid, running in list(self._running.items()):
            if running.done():
                self._newest[pid] = self._running.pop(pid).result()

    def _sample(self, model: LoadedModel) -> _Sample:
        began, ledger = self._clock(), None
        with suppress(LedgerUnavailable):
            ledger = self._ledgers.sample(model)
        return _Sample(ledger, began)


def _file_bytes(model: LoadedModel) -> int:
    """0 if its files are gone: then nothing is sampled either, or little of what is left."""
    total = 0
    with suppress(OSError):
        for path in paths_of(model):
            total += path.stat().st_size
    return total
