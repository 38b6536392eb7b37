"""One running request: its tokens, its sampler, its text and its clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from residency.paging import Paging
from server.protocol import Finished, FinishReason, Piece, Timings
from server.worker.backend import TokenSampler
from server.worker.logprobs import LogprobQueue
from server.worker.slots import Sequence
from server.worker.text import TextStream


@dataclass(frozen=True)
class Meters:
    """What a request is measured by; injected so that tests need no clock."""

    clock: Callable[[], float]
    """Seconds, monotonic."""
    paging: Callable[[], Paging]
    """Of this process, so far."""


@dataclass
class Request:
    id: str
    sequence: Sequence
    sampler: TokenSampler
    text: TextStream
    meters: Meters
    logprobs: LogprobQueue | None = None
    """None: nobody asked for them."""
    untold: int = 0
    """Tokens sampled since the last piece."""
    cached_tokens: int | None = None
    """Prompt tokens whose KV cells were there when it first started; None: it has not."""
    first_token_at: float | None = None
    started_at: float = field(init=False)
    paging_before: Paging = field(init=False)

    def __post_init__(self) -> None:
        self.started_at = self.meters.clock()
        self.paging_before = self.meters.paging()

    def count(self, token: int) -> None:
        """Takes note of a token that was sampled."""
        if self.first_token_at is None:
            self.first_token_at = self.meters.clock()
        self.sequence.append(token)
        self.untold += 1

    def piece(self, text: str) -> Piece:
        """`text` as a piece, with the tokens since the last one."""
        untold, self.untold = self.untold, 0
        return Piece(self.id, text, untold, self.logprobs.take(text) if self.logprobs else [])

    def last_piece(self, text: str) -> Piece | None:
        """What is left to tell at the end; None: nothing."""
        if self.logprobs is None or self.text.stopped:
            return self.piece(text) if text else None
        piece = self.piece(text)
        piece = msgspec.structs.replace(
            piece, logprobs=[*piece.logprobs, *self.logprobs.take_all()]
        )
        return piece if text or piece.logprobs else None

    def finished(self, reason: FinishReason, error: str | None, param: str | None) -> Finished:
        now = self.meters.clock()
        first = now if self.first_token_at is None else self.first_token_at
        paid = self.meters.paging().since(self.paging_before)
        timings = Timings(
            prompt_seconds=first - self.started_at,
            predicted_seconds=now - first,
            major_faults=paid.major_faults,
            read_bytes=paid.read_bytes,
        )
        return Finished(
            id=self.id,
            reason=reason,
            prompt_tokens=self.sequence.n_prompt,
            completion_tokens=self.sequence.generated,
            timings=timings,
            error=error,
            param=param,
            cached_tokens=self.cached_tokens or 0,
        )
