"""The step loop's steps: each is one decode for all slots, and one message with what it gave."""

from __future__ import annotations

from collections.abc import Callable

from server.protocol import (
    Accepted,
    FinishReason,
    Generate,
    Piece,
    Rejected,
    Step,
    ToDaemon,
)
from server.worker.admission import prompt_tokens
from server.worker.backend import DECODED, NO_CELLS, NO_TOKEN, Backend
from server.worker.cells import Cells, Start
from server.worker.logprobs import LogprobQueue
from server.worker.pinning import Pinning
from server.worker.refusals import RequestRefused
from server.worker.request import Meters, Request
from server.worker.slots import Sequence, plan_step
from server.worker.text import TextStream

# Long prompts take minutes. Half of the least that CORRAL_DECODE_TIMEOUT may be.
_SILENT_SECONDS = 5.0


class Engine:
    """Requests in slots. Not thread-safe; `send` is called in the order of events."""

    def __init__(
        self,
        backend: Backend,
        send: Callable[[ToDaemon], None],
        pin: Pinning,
        meters: Meters,
    ) -> None:
        self._backend = backend
        self._send = send
        self._pin = pin
        self._meters = meters
        self.cells = Cells(backend)
        self._running: dict[int, Request] = {}
        """By slot, in the order in which they started."""
        self._waiting: list[Request] = []
        """Accepted ones without cells: oldest first, preempted ones before new ones."""
        self._silent_since: float | None = None
        """When the first of the last steps was that gave no pieces."""
        self._crowded = False
        """The next that waits has no room, and no request has ended since that was found."""

    @property
    def idle(self) -> bool:
        """A step would do nothing."""
        return not self._running and not self._waiting and not self._pin.busy

    @property
    def writing(self) -> bool:
        """Some answer waits for its next token."""
        return any(sequence.behind == 1 for sequence in self.cells.running)

    def on_generate(self, message: Generate) -> None:
        """Accepts the request, for which there has to be a slot, or rejects it."""
        try:
            self._check_slots()
            prompt = prompt_tokens(message, self._backend)
            sampler = self._backend.sampler(message.sampling, prompt, message.ignore_eos)
        except RequestRefused as refusal:
            self._send(Rejected(message.id, refusal.message, refusal.param))
            return
        sequence = Sequence(prompt, message.max_tokens, self._backend.n_ctx)
        text = TextStream(message.stop)
        logprobs = None if message.logprobs is None else LogprobQueue(message.logprobs)
        self._waiting.append(Request(message.id, sequence, sampler, text, self._meters, logprobs))
        self._send(Accepted(message.id, len(prompt)))

    def on_cancel(self, request_id: str) -> None:
        for request in self._accepted():
            if request.id == request_id:
                self.finish_req(request, "cancelled")

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        for request in self._accepted():
            self.finish_req(request, reason, error)

    def step(self) -> None:
        """One decode if anything runs, then some slices of a pin under way."""
        if self._waiting:
            self._start_waiting()
        if self._running:
            self._decode()
        report = self._pin.step()
        if report:
            self._send(report)

    def finish_req(
        self,
        request: Request,
        reason: FinishReason,
        error: str | None = None,
        param: str | None = None,
    ) -> None:
        """The single end of every accepted request.

        Frees the slot, and tells the daemon. The KV cells stay, for a request that begins with
        the same tokens, unless they are in doubt. Then, when the client has its last byte, arms
        the pin, if the request completed: ran to its end and made a token.
        """
        if request in self._waiting:
            self._waiting.remove(request)
        else:
            self._stop(request, keep=reason != "error")
            self._crowded = False
        request.sampler.close()
        self._send(request.finished(reason, error, param))
        if reason in ("stop", "length") and request.sequence.generated:
            self._pin.on_completed()

    def _start_waiting(self) -> None:
        for request in list(self._waiting):
            if self._crowded and self._running:
                return
            match self.cells.try_start(request.sequence):
                case Start.STARTED:
                    self._waiting.remove(request)
                    self._running[request.sequence.slot] = request
                    if request.cached_tokens is None:
                        request.cached_tokens = request.sequence.n_past
                case Start.NO_ROOM:
                    self._crowded = True
                case Start.SHARES_SOON:
                    pass

    def _decode(self) -> None:
        slices = plan_step(
            self.cells.running, self._backend.step_tokens, self._backend.prefill_slice
        )
        status = self._backend.decode(slices)
        while status == NO_CELLS and self.cells.forget_oldest():
            status = self._backend.decode(slices)
        if status == NO_CELLS:
            self._make_room()
            return
        if status != DECODED:
            for part in slices:
                request = self._running[part.sequence.slot]
                self.finish_req(request, "error", f"llama_decode failed with status {status}")
            return
        pieces: list[Piece] = []
        ended: list[tuple[Request, FinishReason]] = []
        refused: list[tuple[Request, RequestRefused]] = []
        for row, part in enumerate(slices):
            request = self._running[part.sequence.slot]
            part.sequence.n_past += part.n_tokens
            try:
                reason = self._sample(request, row, pieces) if part.samples else _prefilled(request)
            except RequestRefused as refusal:
                refused.append((request, refusal))
                continue
            if reason:
                ended.append((request, reason))
        self._tell(pieces)
        for request, reason in ended:
            self.finish_req(request, reason)
        for request, why in refused:
            self.finish_req(request, "error", why.message, why.param)

    def _sample(self, request: Request, row: int, pieces: list[Piece]) -> FinishReason | None:
        """Draws the request's next token and adds its text to `pieces`. Why it ended, if it did.

        Raises RequestRefused.
        """
        token = request.sampler.draw(row)
        reason: FinishReason | None = None
        text = ""
        if token != NO_TOKEN:
            request.count(token)
        if token == NO_TOKEN or self._backend.is_end(token):
            reason = "stop"
        else:
            data = self._backend.piece(token)
            text = request.text.push(data)
            if request.logprobs is not None:
                told = self._backend.logprobs(row, token, request.logprobs.n_top)
                request.logprobs.push(told, len(data))
            if request.text.stopped:
                reason = "stop"
            elif request.sequence.exhausted:
                reason = "length"
        if reason:
            last = request.last_piece(text + request.text.flush())
            pieces += [last] if last else []
        elif text:
            pieces.append(request.piece(text))
        return reason

    def _tell(self, pieces: list[Piece]) -> None:
        """Sends the step's pieces; none, as a sign of life, if there were none for long."""
        if pieces:
            self._send(Step(pieces))
            self._silent_since = None
            return
        now = self._meters.clock()
        if self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since >= _SILENT_SECONDS:
            self._send(Step([]))
            self._silent_since = now

    def _make_room(self) -> None:
        """Preempts the one that started last: it will read its tokens again, and draw on."""
        *others, youngest = self._running.values()
        if not others:
            n_ctx = self._backend.n_ctx
            message = f"a request that runs alone needs more than the {n_ctx} cells of the context"
            self.finish_req(youngest, "error", message)
            return
        self._stop(youngest, keep=False)
        self._waiting.insert(0, youngest)
        self._crowded = True

    def _stop(self, request: Request, *, keep: bool) -> None:
        del self._running[request.sequence.slot]
        self.cells.stop(request.sequence, keep=keep)

    def _accepted(self) -> list[Request]:
        return [*self._running.values(), *self._waiting]

    def _check_slots(self) -> None:
        if len(self._running) + len(self._waiting) == self._backend.n_slots:
            raise RequestRefused(f"all {self._backend.n_slots} slots of the model are busy")


def _prefilled(request: Request) -> FinishReason | None:
    """A request for no tokens ends when its prompt has been read."""
    return "length" if request.sequence.behind == 0 else None
