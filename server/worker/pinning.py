"""When this worker's weights are advised on and locked, and what the daemon hears of it."""

from __future__ import annotations

import dataclasses
import errno
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from residency.advice import advise
from residency.headroom import headroom
from residency.locks import Locks
from residency.modes import Advice, LoadPlan
from residency.pin import MAX_RUNS, SLICE_BYTES, PinResult, pin_plan, working_set
from residency.policy import Policy
from residency.procfs import ProcUnavailable
from residency.ranges import Range, batches, intersect, join, subtract
from server.protocol import PinReport
from server.worker.weights import WeightMap

logger = logging.getLogger("worker.pinning")

STEP_SECONDS = 0.005
"""Beside a step of a small model, 12 ms, a pause that nobody sees; less than one slice where
the disk has to be waited for."""

Steps = Iterator[PinResult | None]
"""None for each step, between which the caller can do other work; perhaps a result last."""
Search = Callable[[Sequence[Range]], Iterator[list[Range] | None]]
"""Finds the working set of these weights in steps. Raises ProcUnavailable."""

_MAX_GAP_BYTES = 64 << 20
"""Read-ahead is 128 KiB by default and 8 MiB on some devices. Mappings are split at most twice
for so many bytes."""


def advise_weights(plan: LoadPlan, weights: WeightMap) -> None:
    """WILLNEED is the reader's: it brings the pages, in huge ones, while the model loads. A page
    that is touched before comes in the same way.

    RANDOM is for what is touched in part. A run between two such parts gets it too unless it is
    long: where the advice ends, the kernel's read-ahead takes from the neighbours.
    """
    if plan.advice is Advice.WILLNEED:
        _advise(weights.mapped, Advice.HUGEPAGE)
    if plan.advice is Advice.RANDOM:
        sparse = intersect(join(weights.sparse, _MAX_GAP_BYTES), weights.mapped)
        _advise(sparse, Advice.RANDOM)
        _advise(sparse, Advice.NOHUGEPAGE)


def may_lock_while_loading(paths: Sequence[Path]) -> bool:
    """Whether llama.cpp may lock the files as it maps them, before there is a KV cache. With
    less room than twice the files Pinning.at_load decides, which knows what else is in memory."""
    room = headroom()
    return room is None or room.bytes >= 2 * sum(path.stat().st_size for path in paths)


class Pinning:
    """Keeps the locks as the policy says: its classes at once, all of them in pinned, and the
    working set when a request has completed."""

    def __init__(
        self,
        weights: WeightMap,
        policy: Policy,
        *,
        search: Search = working_set,
        locks: Locks | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._weights = weights
        self._policy = policy
        self._search = search
        self._clock = clock
        self._locks = locks or Locks(weights.mapped)
        self._steps: Steps | None = None
        self._working: list[Range] = []
        """What was locked, or tried to, because requests had touched it."""
        self._until_pin = self._first_pin()
        """Requests that have to complete before the working set is pinned; None: it is not."""

    @property
    def busy(self) -> bool:
        return self._steps is not None or self._until_pin == 0

    def at_load(self) -> PinReport | None:
        """Locks what the policy wants locked from the start; None if that is nothing. What
        llama.cpp has locked costs nothing to lock again, and so is counted."""
        wanted = self._wanted()
        if self._policy.pin and not self._weights.mapped:
            classes = ", ".join(sorted(self._policy.pin))
            logger.warning(
                "pin %s has no effect in %s: no weights are mapped", classes, self._policy.mode
            )
        if not wanted:
            return None
        (result,) = (result for result in self._locks.change_to(wanted) if result is not None)
        return _report(result)

    def apply(self, policy: Policy) -> None:
        """Change to another policy, in steps. A change or pin under way ends where it is."""
        before, self._policy = self._policy, policy
        if policy.mode is not before.mode:
            self._working = []
            self._until_pin = self._first_pin()
        elif policy.repin_requests != before.repin_requests and self._until_pin not in (0, 1):
            self._until_pin = self._next_pin()
        self._steps = self._change(before)

    def on_completed(self) -> None:
        """A request ran to its end and made a token, or vectors."""
        if self._until_pin:
            self._until_pin -= 1

    def step(self) -> PinReport | None:
        """Goes on with what is under way or due, if anything is, for about STEP_SECONDS. The
        report with its last step."""
        if self._steps is None and self._until_pin == 0:
            self._steps = self._pin_working_set()
        if self._steps is None:
            return None
        until = self._clock() + STEP_SECONDS
        try:
            while (result := next(self._steps)) is None and self._clock() < until:
                pass
        except ProcUnavailable as error:
            self._steps, self._until_pin = None, self._next_pin()
            return _unknown(error)
        if result is None:
            return None
        self._steps = None
        return _report(result)

    def _change(self, before: Policy) -> Steps:
        plan, mapped, wanted = self._policy.plan, self._weights.mapped, self._wanted()
        held = self._locks.change_to(wanted)
        if self._policy.mode is before.mode:
            yield from held
            return
        _advise(mapped, Advice.NORMAL)
        advise_weights(plan, self._weights)
        last: PinResult | None = None
        for last in held:
            if last is None:
                yield None
        if plan.pin_after_first:
            # Or all that another mode has read would count as touched.
            yield from _advised(subtract(mapped, wanted), Advice.DONTNEED)
            # One that completed meanwhile has touched what is forgotten now.
            self._until_pin = self._first_pin()
        yield last

    def _pin_working_set(self) -> Steps:
        found: list[Range] | None = None
        for found in self._search(self._weights.mapped):
            if found is None:
                yield None
        self._working = join([*self._working, *(found or ())])
        wanted = pin_plan([*self._wanted(), *self._locks.held], self._weights.mapped)
        for result in self._locks.extend_to(wanted):
            if result is not None:
                self._until_pin = self._next_pin()
            yield result

    def _wanted(self) -> list[Range]:
        """All that should be locked now."""
        mapped = self._weights.mapped
        if self._policy.plan.use_mlock:
            return list(mapped)
        classes = (self._weights.by_class.get(kind, ()) for kind in self._policy.pin)
        runs = [run for each in classes for run in each]
        return pin_plan([*runs, *self._working], mapped, max_runs=MAX_RUNS)

    def _first_pin(self) -> int | None:
        return 1 if self._policy.plan.pin_after_first else None

    def _next_pin(self) -> int | None:
        repeats = self._policy.plan.pin_after_first and self._policy.repin_requests
        return self._policy.repin_requests if repeats else None


def _advise(ranges: Sequence[Range], advice: Advice) -> None:
    for error in advise(ranges, advice):
        logger.warning("advice %s on the weights was refused: %s", advice, error)


def _advised(ranges: Sequence[Range], advice: Advice) -> Iterator[None]:
    for batch in batches(ranges, SLICE_BYTES):
        _advise(batch, advice)
        yield None


def _report(result: PinResult) -> PinReport:
    return PinReport(**dataclasses.asdict(result))


def _unknown(error: ProcUnavailable) -> PinReport:
    message = f"the working set is unknown, so nothing was locked: {error}"
    return PinReport(0, 0, 0, 0.0, errno.ENOTSUP, message)
