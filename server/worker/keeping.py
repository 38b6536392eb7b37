"""When this worker tells the daemon which weights its requests have touched."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from residency.pin import working_set
from residency.policy import Policy
from residency.procfs import ProcUnavailable
from residency.ranges import Range
from residency.working_set import MAX_RUNS, file_runs
from server.protocol import WorkingSet
from server.worker.pinning import Search

logger = logging.getLogger("worker.keeping")

EVERY_SECONDS = 60.0
"""A crash forgets what was touched for the first time in the last minute."""

_search = partial(working_set, max_runs=MAX_RUNS)


class Keeping:
    """Now and then while nothing runs, and at the end: in the modes that leave weights out, if a
    request came since. Not thread-safe."""

    def __init__(
        self,
        weights: Sequence[Range],
        mappings: Sequence[Range],
        policy: Policy,
        send: Callable[[WorkingSet], None],
        *,
        search: Search = _search,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """weights are whole mapped pages, mappings the addresses of whole files."""
        self._weights = weights
        self._mappings = mappings
        self._policy = policy
        self._send = send
        self._search = search
        self._clock = clock
        self._due = clock() + EVERY_SECONDS
        self._used = False
        """A request came since the last search began."""
        self._steps: Iterator[list[Range] | None] | None = None

    @property
    def due_in(self) -> float | None:
        """Seconds until a step has something to do; None: not before a request comes."""
        if not self._policy.plan.leaves_out:
            return None
        if self._steps is not None:
            return 0.0
        return max(0.0, self._due - self._clock()) if self._used else None

    def on_request(self) -> None:
        self._used = True

    def follow(self, policy: Policy) -> None:
        """The policy in force from now on."""
        self._used = self._used or self._steps is not None
        self._policy, self._steps = policy, None

    def step(self) -> None:
        """Goes on with a search under way or due, for some milliseconds."""
        if self.due_in != 0:
            return
        if self._steps is None:
            self._used = False
            self._steps = self._search(self._weights)
        self._next(self._steps)

    def finish(self) -> None:
        """All that is left to tell, at once: before the model is freed."""
        if self.due_in is None:
            return
        # What an unfinished search has found may be old.
        self._used, self._steps = False, self._search(self._weights)
        while self._steps is not None:
            self._next(self._steps)

    def _next(self, steps: Iterator[list[Range] | None]) -> None:
        try:
            found = next(steps)
        except ProcUnavailable as error:
            logger.warning("the working set is unknown and not kept: %s", error)
            # One warning is enough.
            self._weights, found = (), []
        if found is None:
            return
        self._steps, self._due = None, self._clock() + EVERY_SECONDS
        if found:
            self._send(WorkingSet(self._policy.mode.value, file_runs(found, self._mappings)))
