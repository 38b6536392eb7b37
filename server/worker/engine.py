"""The step loop's steps: each is one decode for all slots, and one message with what it gave."""

from __future__ import annotations

from collections.abc import Callable

from server.protocol import Accepted, FinishReason, Generate, Piece, Rejected, Step, ToDaemon
from server.worker.admission import prompt_tokens
from server.worker.backend import DECODED, NO_CELLS, Backend
from server.worker.pinning import PinHook
from server.worker.refusals import RequestRefused
from server.worker.request import Meters, Request
from server.worker.slots import Sequence, plan_step
from server.worker.text import TextStream


class Engine:
    """Requests in slots. Not thread-safe; `send` is called in the order of events."""

    def __init__(
        self, backend: Backend, send: Callable[[ToDaemon], None], pin: PinHook, meters: Meters
    ) -> None:
        self._backend = backend
        self._send = send
        self._pin = pin
        self._meters = meters
        self._requests: dict[int, Request] = {}
        """By slot; oldest first."""

    @property
    def idle(self) -> bool:
        """A step would do nothing."""
        return not self._requests and not self._pin.busy

    def on_generate(self, message: Generate) -> None:
        """Accepts the request into a free slot, or rejects it."""
        try:
            slot = self._free_slot()
            prompt = prompt_tokens(message, self._backend)
        except RequestRefused as refusal:
            self._send(Rejected(message.id, refusal.message, refusal.param))
            return
        sampler = self._backend.sampler(message.sampling, prompt, message.ignore_eos)
        sequence = Sequence(slot, prompt, message.max_tokens, self._backend.n_ctx)
        self._requests[slot] = Request(
            message.id, sequence, sampler, TextStream(message.stop), self._meters
        )
        self._send(Accepted(message.id, len(prompt)))

    def on_cancel(self, request_id: str) -> None:
        for request in self._running():
            if request.id == request_id:
                self.finish_req(request, "cancelled")

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        for request in self._running():
            self.finish_req(request, reason, error)

    def step(self) -> None:
        """One decode if anything runs, then one slice of a pin under way."""
        if self._requests:
            self._decode()
        report = self._pin.step()
        if report:
            self._send(report)

    def finish_req(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """The single end of every accepted request.

        Frees the slot and its KV cells, and tells the daemon. Then, when the client has its
        last byte, arms the pin, if the request completed: ran to its end and made a token.
        """
        del self._requests[request.sequence.slot]
        self._backend.forget(request.sequence.slot)
        request.sampler.close()
        self._send(request.finished(reason, error))
        if reason in ("stop", "length") and request.sequence.generated:
            self._pin.on_completed()

    def _decode(self) -> None:
        slices = plan_step([r.sequence for r in self._running()], self._backend.step_tokens)
        status = self._backend.decode(slices)
        if status == NO_CELLS:
            self._make_room()
            return
        if status != DECODED:
            for part in slices:
                request = self._requests[part.sequence.slot]
                self.finish_req(request, "error", f"llama_decode failed with status {status}")
            return
        pieces: list[Piece] = []
        ended: list[tuple[Request, FinishReason]] = []
        for row, part in enumerate(slices):
            request = self._requests[part.sequence.slot]
            part.sequence.n_past += part.n_tokens
            reason = self._sample(request, row, pieces) if part.samples else _prefilled(request)
            if reason:
                ended.append((request, reason))
        if pieces:
            self._send(Step(pieces))
        for request, reason in ended:
            self.finish_req(request, reason)

    def _sample(self, request: Request, row: int, pieces: list[Piece]) -> FinishReason | None:
        """Draws the request's next token and adds its text to `pieces`. Why it ended, if it did."""
        token = request.sampler.draw(row)
        request.count(token)
        reason: FinishReason | None = None
        text = ""
        if self._backend.is_end(token):
            reason = "stop"
        else:
            text = request.text.push(self._backend.piece(token))
            if request.text.stopped:
                reason = "stop"
            elif request.sequence.exhausted:
                reason = "length"
        if reason:
            text += request.text.flush()
        if text:
            pieces.append(request.piece(text))
        return reason

    def _make_room(self) -> None:
        youngest = self._running()[-1]
        self.finish_req(
            youngest,
            "error",
            f"the {self._backend.n_ctx} cells of the context are used up by "
            f"{len(self._requests)} requests; this one came last",
        )

    def _running(self) -> list[Request]:
        """Oldest first."""
        return list(self._requests.values())

    def _free_slot(self) -> int:
        for slot in range(self._backend.n_slots):
            if slot not in self._requests:
                return slot
        raise RequestRefused(f"all {self._backend.n_slots} slots of the model are busy")


def _prefilled(request: Request) -> FinishReason | None:
    """A request for no tokens ends when its prompt has been read."""
    return "length" if request.sequence.behind == 0 else None
