"""The events of one call, on their way from the worker to a client that may read slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from server.calls import Begun, CallEvent, Ended, Text, Vectors
from server.errors import ServingError
from server.protocol import TokenLogprobs


class Mailbox:
    """Joins the pieces that the client has not fetched yet into one.

    So it never holds more than the rest of the answer, which the context's length bounds,
    and a client that catches up gets it in one write.
    """

    def __init__(self) -> None:
        self._begun: Begun | None = None
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._vectors: list[bytes] = []
        self._end: Ended | ServingError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def begin(self, begun: Begun) -> None:
        self._begun = begun
        self._tell()

    def add(self, text: str, logprobs: Sequence[TokenLogprobs] = ()) -> None:
        if text or logprobs:
            self._pieces.append(text)
            self._logprobs += logprobs
            self._tell()

    def add_vectors(self, vectors: Sequence[bytes]) -> None:
        if vectors:
            self._vectors += vectors
            self._tell()

    def end(self, end: Ended | ServingError) -> None:
        """Nothing comes after it, and a later end is ignored."""
        if self._end is None:
            self._end = end
            self._tell()

    async def get(self) -> CallEvent:
        """The next event, when there is one; Ended is the last. Raises an end that is an error.

        Only one may wait for it.
        """
        while (event := self._next()) is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return event

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _next(self) -> CallEvent | None:
        if self._vectors:
            vectors = Vectors(tuple(self._vectors))
            self._vectors.clear()
            return vectors
        if self._begun is not None:
            begun, self._begun = self._begun, None
            return begun
        if self._pieces:
            text = Text("".join(self._pieces), tuple(self._logprobs))
            self._pieces.clear()
            self._logprobs.clear()
            return text
        if isinstance(self._end, ServingError):
            raise self._end
        return self._end
