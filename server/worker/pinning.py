"""When this worker's weights are advised on and locked, and what the daemon hears of it."""

from __future__ import annotations

import dataclasses
import errno
import logging
from collections.abc import Callable, Iterator, Sequence

from residency.advice import advise
from residency.modes import Advice, LoadPlan
from residency.pin import PinResult, pin_all, pin_working_set
from residency.procfs import ProcUnavailable
from residency.ranges import Range, intersect, join
from server.protocol import PinReport
from server.worker.weights import WeightMap

logger = logging.getLogger("worker.pinning")

_MAX_GAP_BYTES = 64 << 20
"""Read-ahead is 128 KiB by default and 8 MiB on some devices. Mappings are split at most twice
for so many bytes."""


def advise_weights(plan: LoadPlan, weights: WeightMap) -> None:
    """WILLNEED is the reader's: it asks for the pages while the model loads.

    RANDOM is for what is touched in part. A run between two such parts gets it too unless it is
    long: where the advice ends, the kernel's read-ahead takes from the neighbours.
    """
    if plan.advice is not Advice.RANDOM:
        return
    runs = intersect(join(weights.sparse, _MAX_GAP_BYTES), weights.mapped)
    for error in advise(runs, plan.advice):
        logger.warning("advice %s on the weights was refused: %s", plan.advice, error)


def pin_at_load(mapped: Sequence[Range]) -> PinReport:
    """Locks all mapped weights, or learns that llama.cpp has: locking twice is free."""
    return _report(pin_all(mapped))


class PinHook:
    """Pins the working set once per load, after the first request that completed."""

    def __init__(
        self,
        mapped: Sequence[Range],
        *,
        armed: bool,
        start: Callable[[Sequence[Range]], Iterator[PinResult | None]] = pin_working_set,
    ) -> None:
        self._mapped = mapped
        self._armed = armed
        self._start = start
        self._steps: Iterator[PinResult | None] | None = None

    @property
    def busy(self) -> bool:
        return self._steps is not None

    def on_completed(self) -> None:
        """A request ran to its end and made a token."""
        if self._armed:
            self._armed = False
            self._steps = self._start(self._mapped)

    def step(self) -> PinReport | None:
        """Does a slice of the pin under way, if one is. The report with its last."""
        if self._steps is None:
            return None
        try:
            result = next(self._steps)
        except ProcUnavailable as error:
            self._steps = None
            return _unknown(error)
        if result is None:
            return None
        self._steps = None
        return _report(result)


def _report(result: PinResult) -> PinReport:
    return PinReport(**dataclasses.asdict(result))


def _unknown(error: ProcUnavailable) -> PinReport:
    message = f"the working set is unknown, so nothing was locked: {error}"
    return PinReport(0, 0, 0, 0.0, errno.ENOTSUP, message)
