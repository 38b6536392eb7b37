"""One request on its way through the daemon: what it has seen so far, and its log line."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property

from server import protocol
from server.calls import Begun, Call, EmbedCall, Ended
from server.errors import BadRequest, EndedEarly, ServingError
from server.mailbox import Mailbox
from server.metrics import Metrics
from server.protocol import Embed, Embedded, Finished, Generate, Piece, ProtocolError, Timings

log = logging.getLogger("corral.request")

CLIENT_WENT_AWAY = 499
"""No HTTP status, but what proxies write in their logs for it."""


@dataclass
class Request:
    """Times are seconds of the core's clock."""

    call: Call | EmbedCall
    arrived: float
    metrics: Metrics
    frame: bytes
    """The message for the worker, until it is sent."""
    mailbox: Mailbox = field(default_factory=Mailbox)
    abandoned: int | None = None
    """The status it will end with though its worker still runs it; None: it is waited for."""
    _submitted: float | None = None
    _load_seconds: float = 0
    _first_token: float | None = None
    _last_token: float = 0
    _prompt_tokens: int = 0
    _generated: int = 0

    @classmethod
    def of(cls, call: Call | EmbedCall, now: float, metrics: Metrics) -> Request:
        """Raises BadRequest if the prompt is longer than a message may be."""
        embeds = isinstance(call, EmbedCall)
        try:
            message = _embed(call) if isinstance(call, EmbedCall) else _generate(call)
            return cls(call, now, metrics, protocol.encode(message))
        except ProtocolError as error:
            param = "input" if embeds else "prompt"
            raise BadRequest(f"the {param} is too long: {error}", param=param) from error

    @property
    def embeds(self) -> bool:
        return isinstance(self.call, EmbedCall)

    @cached_property
    def model(self) -> str:
        return self.call.spec.name

    @property
    def running(self) -> bool:
        """It was handed to its worker."""
        return self._submitted is not None

    def submit(self, now: float, load_began: float, load_ended: float) -> bytes:
        """The frame to send to the worker that was loaded in that time."""
        self._submitted = now
        self._load_seconds = max(0.0, load_ended - max(load_began, self.arrived))
        self.metrics.submitted(self.model, now - self.arrived)
        frame, self.frame = self.frame, b""
        return frame

    def accept(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self.metrics.accepted(self.model, prompt_tokens)
        self.mailbox.begin(Begun(prompt_tokens, self._load_seconds))

    def add(self, piece: Piece, now: float) -> None:
        """The worker made more text."""
        self.mailbox.add(piece.text, piece.logprobs)
        if piece.n_tokens == 0:
            return
        if self._first_token is None:
            self._first_token = now
            self.metrics.first_token(self.model, now - self.arrived)
        else:
            self.metrics.next_tokens(self.model, now - self._last_token, piece.n_tokens)
        self._last_token = now
        self._count(piece.n_tokens)

    def add_vectors(self, embedded: Embedded) -> None:
        """The worker has read more of the inputs."""
        self.mailbox.add_vectors(embedded.vectors)

    def finish(self, finished: Finished, now: float) -> None:
        """The worker ended it."""
        if self.embeds:
            self._prompt_tokens = finished.prompt_tokens
            self.metrics.embedded(self.model, finished.prompt_tokens)
            self.mailbox.begin(Begun(finished.prompt_tokens, self._load_seconds))
        else:
            # The worker's last word may count some that gave no text.
            self._count(max(0, finished.completion_tokens - self._generated))
            self.metrics.reused(self.model, finished.cached_tokens)
        if finished.reason == "error":
            kind = BadRequest if finished.param else ServingError
            error = kind(finished.error or "the worker gave no reason", param=finished.param)
            self.fail(error, now, finished.timings)
            return
        if finished.reason == "cancelled":
            self.fail(EndedEarly("the request ended early: cancelled"), now, finished.timings)
            return
        self.mailbox.end(
            Ended(
                finished.reason,
                finished.prompt_tokens,
                finished.completion_tokens,
                finished.timings,
                now - self.arrived,
                finished.cached_tokens,
            )
        )
        self._close(200, now, finished.timings)

    def fail(self, error: ServingError, now: float, timings: Timings | None = None) -> None:
        """It ends with an error."""
        self.mailbox.end(error)
        self._close(error.status, now, timings)

    def leave(self, now: float) -> None:
        """Nobody waits for it any more, and no worker has it."""
        self._close(CLIENT_WENT_AWAY, now, None)

    def _count(self, n: int) -> None:
        """n more tokens."""
        self.metrics.generated(self.model, n)
        self._generated += n

    def _close(self, status: int, now: float, timings: Timings | None) -> None:
        status = self.abandoned or status
        self.metrics.ended(self.model, self.call.endpoint, status, now - self.arrived)
        if status == 200 and timings:
            self.metrics.paged(self.model, timings)
        log.info(
            "id=%s model=%s endpoint=%s status=%d prompt_tokens=%d completion_tokens=%d "
            "ttft=%s duration=%.3f queue=%s major_faults=%s read_bytes=%s",
            self.call.id,
            self.model,
            self.call.endpoint,
            status,
            self._prompt_tokens,
            self._generated,
            self._since_arrival(self._first_token),
            now - self.arrived,
            self._since_arrival(self._submitted),
            _or_dash(timings.major_faults if timings else None),
            _or_dash(timings.read_bytes if timings else None),
        )

    def _since_arrival(self, at: float | None) -> str:
        return "-" if at is None else f"{at - self.arrived:.3f}"


def _generate(call: Call) -> Generate:
    return Generate(
        id=call.id,
        prompt=call.prompt,
        sampling=call.sampling,
        max_tokens=call.max_tokens,
        stop=list(call.stop),
        ignore_eos=call.ignore_eos,
        logprobs=call.logprobs,
    )


def _embed(call: EmbedCall) -> Embed:
    return Embed(call.id, call.inputs, call.truncate, call.dimensions)


def _or_dash(count: int | None) -> str:
    return "-" if count is None else str(count)
