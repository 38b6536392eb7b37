"""When this worker's weights are advised on and locked, and what the daemon hears of it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence

from residency.advice import advise
from residency.modes import LoadPlan
from residency.pin import PinJob, PinResult, pin_all, pin_plan, touched_ranges
from residency.procfs import ProcUnavailable
from residency.ranges import Range
from server.protocol import PinReport

logger = logging.getLogger("worker.pinning")


def advise_weights(plan: LoadPlan, mapped: Sequence[Range]) -> None:
    for error in advise(mapped, plan.advice):
        logger.warning("advice %s on the weights was refused: %s", plan.advice, error)


def pin_at_load(mapped: Sequence[Range]) -> PinReport:
    """Locks all mapped weights, or learns that llama.cpp has: locking twice is free."""
    return _report(pin_all(mapped))


def working_set_pin(mapped: Sequence[Range]) -> PinJob:
    """A job that locks what this process has touched of its weights so far."""
    return PinJob(pin_plan(touched_ranges(mapped), mapped), read_ahead=True)


class PinHook:
    """Pins the working set once per load, after the first request that completed."""

    def __init__(
        self,
        mapped: Sequence[Range],
        *,
        armed: bool,
        start: Callable[[Sequence[Range]], PinJob] = working_set_pin,
    ) -> None:
        self._mapped = mapped
        self._armed = armed
        self._start = start
        self._due = False
        self._job: PinJob | None = None

    @property
    def busy(self) -> bool:
        return self._due or self._job is not None

    def on_completed(self) -> None:
        """A request ran to its end and made a token."""
        if self._armed:
            self._armed, self._due = False, True

    def step(self) -> PinReport | None:
        """Does a slice of the pin under way, if one is. The report with its last."""
        if self._due:
            self._due = False
            try:
                self._job = self._start(self._mapped)
            except ProcUnavailable as error:
                return _unknown(error)
        result = self._job.step() if self._job else None
        if result is None:
            return None
        self._job = None
        return _report(result)


def _report(result: PinResult) -> PinReport:
    if result.message:
        logger.warning("%s", result.message)
    return PinReport(
        bytes_asked=result.bytes_asked,
        bytes_locked=result.bytes_locked,
        n_runs=result.n_runs,
        seconds=result.seconds,
        errno=result.errno,
        message=result.message,
    )


def _unknown(error: ProcUnavailable) -> PinReport:
    message = f"the working set is unknown, so nothing was locked: {error}"
    logger.warning("%s", message)
    return PinReport(0, 0, 0, 0.0, errno.ENOTSUP, message)
