"""When this worker's weights are advised on and locked, and what the daemon hears of it."""

from __future__ import annotations

import dataclasses
import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from residency.advice import advise
from residency.headroom import headroom
from residency.modes import LoadPlan
from residency.pin import PinResult, pin_all, pin_working_set
from residency.procfs import ProcUnavailable
from residency.ranges import Range
from server.protocol import PinReport

logger = logging.getLogger("worker.pinning")


def advise_weights(plan: LoadPlan, mapped: Sequence[Range]) -> None:
    for error in advise(mapped, plan.advice):
        logger.warning("advice %s on the weights was refused: %s", plan.advice, error)


def may_lock_while_loading(paths: Sequence[Path]) -> bool:
    """Whether llama.cpp may lock the files as it maps them, before there is a KV cache. With
    less room than twice the files pin_at_load decides, which knows what else is in memory."""
    room = headroom()
    return room is None or room.bytes >= 2 * sum(path.stat().st_size for path in paths)


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
