"""Embedding requests: their texts, packed into batches, between the steps of the slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from residency.paging import Paging
from server.protocol import (
    ContextGrown,
    Embed,
    Embedded,
    Finished,
    FinishReason,
    Rejected,
    Timings,
    ToDaemon,
)
from server.worker.pinning import Pinning
from server.worker.pooling import How, Pool, Rows
from server.worker.refusals import ContextRefused, RequestRefused
from server.worker.request import Meters
from server.worker.slots import Tokens
from server.worker.texts import Limit, Texts, Tokenizer


class Reader(Protocol):
    """What reads texts: a context of its own, apart from that of the slots."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    pooling: How
    limit: Limit
    n_embd: int
    kv_bytes: int
    """Of all contexts of the worker."""
    n_sequences: int
    """Texts that may be under way at a time."""
    n_cells: int | None
    """Tokens that they may have together; None: it keeps none."""
    step_tokens: int
    """Tokens to read at a time, where no stream waits."""
    reads_whole: bool
    """A text cannot be read in parts, so a step takes more tokens for one that has more."""

    def read(self, runs: Sequence[tuple[int, int, Tokens]]) -> Rows | int:
        """The vectors of all tokens of these runs, each a sequence, a position and tokens; valid
        until the next read. Or the status of a failure."""
        ...

    def forget(self, seq: int) -> None: ...


@dataclass(eq=False)
class _Job:
    id: str
    texts: Texts
    dimensions: int | None
    started_at: float
    paging_before: Paging
    n_open: int
    """Texts without a vector yet."""
    n_tokens: int = 0


@dataclass(eq=False)
class _Reading:
    """A text that is under way."""

    job: _Job
    tokens: Tokens
    seq: int
    pool: Pool
    n_past: int = 0

    @property
    def behind(self) -> int:
        return len(self.tokens) - self.n_past


class Embedder:
    """Takes a text of each request in turn. Not thread-safe; `send` is called in order."""

    def __init__(
        self,
        open_reader: Callable[[], Reader],
        send: Callable[[ToDaemon], None],
        pin: Pinning,
        meters: Meters,
    ) -> None:
        """open_reader is called once, for the first request; it may raise
        RequestRefused or ContextRefused, and is then called again for the next."""
        self._open_reader = open_reader
        self._reader: Reader | None = None
        self._send = send
        self._pin = pin
        self._meters = meters
        self._jobs: dict[str, _Job] = {}
        self._turns: deque[_Job] = deque()
        """Jobs with texts that have not been begun."""
        self._reading: list[_Reading] = []
        """In the order in which they were begun; so only the last can be half read."""
        self._free: list[int] = []

    @property
    def idle(self) -> bool:
        return not self._jobs

    def on_embed(self, message: Embed) -> None:
        """Takes the request on, or rejects it."""
        try:
            reader = self._opened()
            if message.dimensions is not None and not 1 <= message.dimensions <= reader.n_embd:
                raise RequestRefused(
                    f"dimensions is {message.dimensions}; this model's vectors have "
                    f"{reader.n_embd}",
                    "dimensions",
                )
        except RequestRefused as refusal:
            self._send(Rejected(message.id, refusal.message, refusal.param))
            return
        except ContextRefused as refusal:
            timings = Timings(
                prompt_seconds=0.0, predicted_seconds=0.0, major_faults=0, read_bytes=None
            )
            self._send(Finished(message.id, "error", 0, 0, timings, str(refusal)))
            return
        job = _Job(
            message.id,
            Texts(message, reader.tokenizer, reader.limit),
            message.dimensions,
            self._meters.clock(),
            self._meters.paging(),
            n_open=len(message.inputs),
        )
        self._jobs[job.id] = job
        self._turns.append(job)

    def on_cancel(self, request_id: str) -> None:
        if job := self._jobs.get(request_id):
            self._finish(job, "cancelled")

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        for job in list(self._jobs.values()):
            self._finish(job, reason, error)

    def step(self, most: int | None) -> None:
        """One batch of at most so many tokens, if anything waits; None: as many as suit."""
        if self._reader is None or not self._jobs:
            return
        budget = self._reader.step_tokens
        parts = self._plan(self._reader, budget if most is None else min(most, budget))
        if not parts:
            return
        rows = self._reader.read([(r.seq, r.n_past, r.tokens[r.n_past :][:n]) for r, n in parts])
        if isinstance(rows, int):
            for job in {part.job for part, _ in parts}:
                self._finish(job, "error", f"llama_decode failed with status {rows}")
            return
        told: dict[_Job, list[bytes]] = {part.job: [] for part, _ in parts}
        start = 0
        for reading, n in parts:
            reading.pool.add(rows[start : start + n])
            reading.n_past += n
            start += n
        self._tell(self._reader, [r for r, _ in parts if r.behind == 0], told)

    def _tell(self, reader: Reader, whole: list[_Reading], told: dict[_Job, list[bytes]]) -> None:
        """Sends the vectors of texts that have been read, and an empty message where none is."""
        broken: dict[_Job, str] = {}
        for reading in whole:
            self._drop(reader, reading)
            job = reading.job
            try:
                told[job].append(reading.pool.unit(job.dimensions))
            except ValueError as error:
                broken[job] = str(error)
            job.n_open -= 1
            job.n_tokens += len(reading.tokens)
        for job, vectors in told.items():
            if job in broken:
                self._finish(job, "error", broken[job])
                continue
            self._send(Embedded(job.id, vectors))
            if job.n_open == 0:
                self._finish(job, "stop")

    def _plan(self, reader: Reader, budget: int) -> list[tuple[_Reading, int]]:
        """The next batch: the texts that take part, and how many tokens of each."""
        parts: list[tuple[_Reading, int]] = []
        left = budget
        for reading in self._reading:
            n = min(reading.behind, left)
            parts.append((reading, n))
            left -= n
        while left > 0 and self._turns:
            job = self._turns[0]
            try:
                tokens = job.texts.peek()
            except RequestRefused as refusal:
                self._drop_all(job)
                parts = [(r, n) for r, n in parts if r.job is not job]
                self._send(Rejected(job.id, refusal.message, refusal.param))
                continue
            if not self._has_room(reader, tokens, left, alone=not parts):
                break
            reading = self._begin(reader, job)
            n = len(tokens) if reader.reads_whole else min(len(tokens), left)
            parts.append((reading, n))
            left -= n
        return parts

    def _has_room(self, reader: Reader, tokens: Tokens, left: int, *, alone: bool) -> bool:
        if alone:
            return True
        if len(self._reading) == reader.n_sequences:
            return False
        if reader.reads_whole and len(tokens) > left:
            return False
        used = sum(len(reading.tokens) for reading in self._reading)
        return reader.n_cells is None or used + len(tokens) <= reader.n_cells

    def _begin(self, reader: Reader, job: _Job) -> _Reading:
        self._turns.popleft()
        reading = _Reading(job, job.texts.take(), self._free.pop(), Pool(reader.pooling))
        self._reading.append(reading)
        if len(job.texts):
            self._turns.append(job)
        return reading

    def _drop(self, reader: Reader, reading: _Reading) -> None:
        self._reading.remove(reading)
        self._free.append(reading.seq)
        reader.forget(reading.seq)

    def _drop_all(self, job: _Job) -> None:
        """Nothing of the request is left."""
        del self._jobs[job.id]
        if job in self._turns:
            self._turns.remove(job)
        for reading in [each for each in self._reading if each.job is job]:
            assert self._reader is not None
            self._drop(self._reader, reading)

    def _finish(self, job: _Job, reason: FinishReason, error: str | None = None) -> None:
        """The single end of every request that was not rejected. One that was served arms the
        pin: it has touched what a request touches."""
        self._drop_all(job)
        paid = self._meters.paging().since(job.paging_before)
        timings = Timings(
            prompt_seconds=self._meters.clock() - job.started_at,
            predicted_seconds=0.0,
            major_faults=paid.major_faults,
            read_bytes=paid.read_bytes,
        )
        self._send(Finished(job.id, reason, job.n_tokens, 0, timings, error))
        if reason == "stop":
            self._pin.on_completed()

    def _opened(self) -> Reader:
        if self._reader is None:
            self._reader = self._open_reader()
            self._free = list(range(self._reader.n_sequences))
            self._send(ContextGrown(self._reader.kv_bytes))
        return self._reader
