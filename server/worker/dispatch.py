"""A worker's requests, to whom they belong: the slots, or the embedder beside them."""

from __future__ import annotations

from collections.abc import Callable

from residency.policy import parse_policy
from server.protocol import Apply, Embed, FinishReason, Generate, Rejected, ToDaemon
from server.worker.embedding import Embedder
from server.worker.engine import Engine
from server.worker.keeping import Keeping
from server.worker.pinning import Pinning
from server.worker.reading import Reading


class Dispatcher:
    """Not thread-safe; `send` is called in the order of events.

    An embedding request has no slot: it holds none of the slots' cells, and a long answer would
    keep it waiting for minutes, as its 2,048 texts would an answer. They take turns instead.
    """

    def __init__(
        self,
        engine: Engine | None,
        embedder: Embedder,
        prefill_slice: int,
        *,
        pin: Pinning,
        ahead: Reading,
        keeping: Keeping,
        send: Callable[[ToDaemon], None],
    ) -> None:
        """Without an engine the model writes no text; with one, that steps the pin."""
        self._engine = engine
        self._embedder = embedder
        self._prefill_slice = prefill_slice
        self._pin = pin
        self._ahead = ahead
        self._keeping = keeping
        self._send = send

    @property
    def idle(self) -> bool:
        """A step would do nothing, but for what due_in tells."""
        engine_idle = self._engine.idle if self._engine else not self._pin.busy
        return engine_idle and self._embedder.idle

    @property
    def due_in(self) -> float | None:
        """Seconds until a step of an idle worker has something to do; None: not of itself."""
        return self._keeping.due_in

    def on_generate(self, message: Generate) -> None:
        self._wake()
        self._keeping.on_request()
        if self._engine:
            self._engine.on_generate(message)
        else:
            self._send(
                Rejected(message.id, "the model makes embeddings and writes no text", "model")
            )
        self._ahead.on_change(idle=self.idle)

    def on_embed(self, message: Embed) -> None:
        self._wake()
        self._keeping.on_request()
        self._embedder.on_embed(message)
        self._ahead.on_change(idle=self.idle)

    def on_apply(self, message: Apply) -> None:
        """Begins to change how the weights are kept; the steps go on with it."""
        policy = parse_policy(message.residency, message.pin, message.repin_requests)
        self._ahead.follow(policy.plan)
        self._keeping.follow(policy)
        self._pin.apply(policy)

    def on_cancel(self, request_id: str) -> None:
        if self._engine:
            self._engine.on_cancel(request_id)
        self._embedder.on_cancel(request_id)
        self._ahead.on_change(idle=self.idle)

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        if self._engine:
            self._engine.end_all(reason, error)
        self._embedder.end_all(reason, error)

    def finish(self) -> None:
        """Tells what has to be told before the model is freed."""
        self._keeping.finish()

    def step(self) -> None:
        """A step of the slots, then a batch of texts: while an answer is being written, one that
        holds it up no longer than a slice of a prompt does."""
        if self._engine:
            self._engine.step()
        elif report := self._pin.step():
            self._send(report)
        writing = self._engine is not None and self._engine.writing
        self._embedder.step(self._prefill_slice if writing else None)
        self._ahead.on_change(idle=self.idle)
        if self.idle:
            self._keeping.step()

    def _wake(self) -> None:
        if self.idle:
            self._ahead.on_wake()
