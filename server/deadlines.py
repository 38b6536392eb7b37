"""When requests run out of time."""

from __future__ import annotations

from collections.abc import Iterator

from server.errors import TimedOut


class Deadlines:
    """All get the same time from their arrival, so they fall due in order of arrival."""

    def __init__(self, seconds: float | None) -> None:
        """None: there is no deadline."""
        self._seconds = seconds
        self._due: dict[str, float] = {}

    def begin(self, id: str, now: float) -> None:
        if self._seconds is not None:
            self._due[id] = now + self._seconds

    def end(self, id: str) -> None:
        """The request has ended, or nobody waits for it. An id without a deadline is ignored."""
        self._due.pop(id, None)

    def take_due(self, now: float) -> Iterator[tuple[str, TimedOut]]:
        """Those that have run out of time, which then have no deadline any more, and the error
        that each gets."""
        while (first := self.first()) is not None and first <= now:
            id = next(iter(self._due))
            del self._due[id]
            assert self._seconds is not None
            yield id, TimedOut(self._seconds)

    def first(self) -> float | None:
        """The earliest deadline."""
        return next(iter(self._due.values()), None)
