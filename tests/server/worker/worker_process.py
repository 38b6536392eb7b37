"""A real worker process on a socket pair, driven as the daemon drives it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from residency.procfs import PROC, Status
from server.protocol import (
    HEADER_BYTES,
    Accepted,
    Cancel,
    ContextGrown,
    Embed,
    Embedded,
    Finished,
    Generate,
    Load,
    Ready,
    Rejected,
    Sampling,
    Shutdown,
    Step,
    ToDaemon,
    TokenLogprobs,
    ToWorker,
    body_length,
    decode_for_daemon,
    encode,
)

GREEDY = Sampling(temperature=0)
ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 60

M = TypeVar("M")
Vectors = npt.NDArray[np.float32]


@dataclass
class Answer:
    """All that came for one request."""

    text: str = ""
    prompt_tokens: int = 0
    told_tokens: int = 0
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    vectors: list[bytes] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def end(self) -> Finished:
        assert self.finished is not None
        return self.finished


class WorkerProcess:
    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.process = process
        self.sock = sock
        self.others: list[ToDaemon] = []
        """What came while something else was awaited: pin reports."""

    def send(self, *messages: ToWorker) -> None:
        self.sock.sendall(b"".join(map(encode, messages)))

    def receive(self) -> ToDaemon:
        return decode_for_daemon(self._exactly(body_length(self._exactly(HEADER_BYTES))))

    def expect(self, kind: type[M]) -> M:
        """The next message, which has to be of this kind."""
        message = self.receive()
        assert isinstance(message, kind), message
        return message

    def accepted(self, request: Generate) -> int:
        """Sends the request and waits for its Accepted. Prompt tokens."""
        self.send(request)
        return self.expect(Accepted).prompt_tokens

    def rejected(self, request: Generate | Embed) -> Rejected:
        self.send(request)
        while isinstance(message := self.receive(), ContextGrown):
            self.others.append(message)
        assert isinstance(message, Rejected), message
        return message

    def embeddings(self, *requests: Embed) -> list[Vectors]:
        """A row for each input of each request, read until each has its Finished."""
        return [vectors(answer) for answer in self.answers(*requests)]

    def answers(self, *requests: Generate | Embed) -> list[Answer]:
        """Sends all at once and reads until each has its Finished."""
        self.send(*requests)
        return self.collect([r.id for r in requests])

    def answer(self, request: Generate | Embed) -> Answer:
        return self.answers(request)[0]

    def collect(self, ids: Sequence[str]) -> list[Answer]:
        answers = {request_id: Answer() for request_id in ids}
        while any(answer.finished is None for answer in answers.values()):
            self._note(self.receive(), answers)
        return [answers[request_id] for request_id in ids]

    def status(self) -> Status:
        return PROC.status(self.process.pid)

    def cancel(self, request_id: str) -> None:
        self.send(Cancel(request_id))

    def shut_down(self) -> int:
        self.send(Shutdown())
        return self.process.wait(PATIENCE_SECONDS)

    def _note(self, message: ToDaemon, answers: dict[str, Answer]) -> None:
        match message:
            case Step():
                for piece in message.pieces:
                    answer = answers[piece.id]
                    answer.text += piece.text
                    answer.pieces.append(piece.text)
                    answer.logprobs += piece.logprobs
                    answer.told_tokens += piece.n_tokens
            case Embedded():
                answers[message.id].vectors += message.vectors
            case Finished():
                answers[message.id].finished = message
            case Accepted():
                answers[message.id].prompt_tokens = message.prompt_tokens
            case Rejected() if message.id in answers:
                raise AssertionError(message)
            case _:
                self.others.append(message)

    def _exactly(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            got = self.sock.recv(n - len(data))
            assert got, f"the worker closed its socket; exit status {self.process.poll()}"
            data += got
        return data


@contextmanager
def worker_process(
    prefix: Sequence[str] = (), python_path: Path | None = None, stdout: int | None = None
) -> Iterator[WorkerProcess]:
    """A worker that has been told nothing. `prefix` is a command to start it under,
    `python_path` a folder whose modules hide the installed ones."""
    path = f"{python_path}:{ROOT}" if python_path else str(ROOT)
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_SECONDS)
    command = [*prefix, sys.executable, "-m", "server.worker", "--fd", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path},
            stdout=stdout,
        )
    try:
        with ours:
            yield WorkerProcess(process, ours)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def load_message(*paths: Path, **changes: object) -> Load:
    fields: dict[str, object] = {
        "model": paths[0].name,
        "paths": [str(path) for path in paths],
        "residency": "eager",
        "pin": [],
        "repin_requests": 0,
        "n_ctx": 256,
        "n_batch": 512,
        "n_ubatch": 32,
        "prefill_slice": 32,
        # More would wait for each other on a busy machine.
        "n_threads": 1,
        "n_gpu_layers": 0,
        "n_slots": 4,
        "type_k": "f16",
        "type_v": "f16",
        "flash_attn": "auto",
        "pooling": "model",
    }
    return Load(**fields | changes)  # type: ignore[arg-type]


@contextmanager
def loaded_worker(
    *paths: Path, prefix: Sequence[str] = (), **changes: object
) -> Iterator[tuple[WorkerProcess, Ready]]:
    """A worker that has this model loaded, shut down in good order at the end."""
    with worker_process(prefix) as worker:
        worker.send(load_message(*paths, **changes))
        yield worker, worker.expect(Ready)
        assert worker.shut_down() == 0


def vectors(answer: Answer) -> Vectors:
    """A row for each input, of a request that was served."""
    assert answer.end.reason == "stop", answer.end
    return np.stack([np.frombuffer(each, dtype="<f4") for each in answer.vectors])


def request(request_id: str, prompt: str | list[int], **changes: object) -> Generate:
    fields: dict[str, object] = {"sampling": GREEDY, "max_tokens": 16}
    return Generate(id=request_id, prompt=prompt, **fields | changes)  # type: ignore[arg-type]
