"""A worker without a model: speaks server/protocol.py and misbehaves as it is told.

Started with made_calls.FAKE_WORKER in the place of `python -m server.worker`.

The path of the model, `Load.paths[0]`, is a list of words joined by `+`:

    ok            loads at once
    slow=S        takes S seconds to load
    until=FILE    loads when there is such a file
    fail=TEXT     answers LoadFailed(TEXT) and exits
    fail-hang     answers LoadFailed and does not exit
    die           says "no more memory" on stderr and dies of SIGKILL in the load
    hang          never finishes the load, and ignores all but SIGKILL
    garbage       sends a frame of an unknown shape instead of Ready
    deaf          loads, then ignores Shutdown and SIGTERM
    anonymous     loads, and has none of its weights mapped
    pin-fails=N   loads, then reports a pin that fell short, with this errno

A prompt given as text is one of:

    echo N        N pieces "w0 ", "w1 ", … of a token each, then Finished("stop")
    slow N S      the same with S seconds before each piece
    until FILE    the piece "w0 " when there is such a file
    crash N       N pieces, then SIGSEGV
    kill N        N pieces, then SIGKILL
    hang          Accepted, then nothing until it is cancelled
    wedge         Accepted, then the whole worker stops reading and ignores SIGTERM
    stall         Accepted, then the whole worker stands still, as in a native call without end
    reject TEXT   Rejected(TEXT, param="prompt")
    error TEXT    one piece, then Finished("error", error=TEXT)
    garbage       Accepted, then a frame that is longer than any may be

An Embed gets, for each of its inputs, the vector (number of the input, its length), and a
ContextGrown before the first; if the first input is `hang`, nothing until it is cancelled.
An Apply is printed, and answered as if all was locked.

Any other prompt is answered like `echo 2`. `max_tokens`, unless negative, cuts the pieces off
and the reason is then "length". Prompt tokens are the prompt's words (or its token ids).
Every generation runs in a thread of its own.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from server.protocol import (
    HEADER_BYTES,
    Accepted,
    Apply,
    Cancel,
    ContextGrown,
    Embed,
    Embedded,
    Finished,
    FinishReason,
    Generate,
    Load,
    LoadFailed,
    Piece,
    PinReport,
    Ready,
    Rejected,
    Shutdown,
    Step,
    Timings,
    ToDaemon,
    ToWorker,
    WeightBytes,
    body_length,
    decode_for_worker,
    encode,
)

WEIGHTS = WeightBytes(file=3_000_000, anonymous=2_000_000)


class Channel:
    """The worker's end of the socket pair; whole messages, from any thread."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._stream = self._socket.makefile("rb")
        self._lock = threading.Lock()

    def receive(self) -> ToWorker | None:
        header = self._stream.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        return decode_for_worker(self._stream.read(body_length(header)))

    def send(self, message: ToDaemon) -> None:
        self.send_raw(encode(message))

    def send_raw(self, frame: bytes) -> None:
        with self._lock:
            self._socket.sendall(frame)


class Generation(threading.Thread):
    """One request, answered as its prompt says."""

    def __init__(self, channel: Channel, request: Generate) -> None:
        super().__init__(daemon=True)
        self.channel = channel
        self.request = request
        self.cancelled = threading.Event()
        self.sent = 0

    def run(self) -> None:
        prompt = self.request.prompt
        words = prompt.split() if isinstance(prompt, str) else [str(token) for token in prompt]
        self.prompt_tokens = len(words)
        verb, *rest = words or [""]
        text = " ".join(rest)
        if verb == "reject":
            self.channel.send(Rejected(self.request.id, text, "prompt"))
            return
        self.channel.send(Accepted(self.request.id, self.prompt_tokens))
        if verb == "echo":
            self.answer(int(rest[0]))
        elif verb == "slow":
            self.answer(int(rest[0]), float(rest[1]))
        elif verb == "until":
            wait_for(rest[0])
            self.answer(1)
        elif verb in ("crash", "kill"):
            self.pieces(int(rest[0]), 0)
            print(f"about to {verb}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV if verb == "crash" else signal.SIGKILL)
        elif verb == "stall":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif verb == "hang":
            self.cancelled.wait()
            self.finish("cancelled")
        elif verb == "error":
            self.pieces(1, 0)
            self.finish("error", text)
        elif verb == "garbage":
            self.channel.send_raw(b"\xff" * HEADER_BYTES)
        elif verb != "wedge":
            self.answer(2)

    def answer(self, n: int, seconds: float = 0) -> None:
        limit = self.request.max_tokens
        self.pieces(n if limit < 0 else min(n, limit), seconds)
        if self.cancelled.is_set():
            self.finish("cancelled")
        else:
            self.finish("length" if 0 <= limit < n else "stop")

    def pieces(self, n: int, seconds: float) -> None:
        for number in range(n):
            if self.cancelled.wait(seconds) if seconds else self.cancelled.is_set():
                return
            self.channel.send(Step([Piece(self.request.id, f"w{number} ", 1)]))
            self.sent += 1

    def finish(self, reason: FinishReason, error: str | None = None) -> None:
        timings = Timings(0.01, 0.02, major_faults=7, read_bytes=4096)
        self.channel.send(
            Finished(self.request.id, reason, self.prompt_tokens, self.sent, timings, error)
        )


class Embedding(threading.Thread):
    """One request for embeddings."""

    def __init__(self, channel: Channel, request: Embed) -> None:
        super().__init__(daemon=True)
        self.channel = channel
        self.request = request
        self.cancelled = threading.Event()

    def run(self) -> None:
        self.channel.send(ContextGrown(kv_bytes=1_500_000))
        inputs = self.request.inputs
        if inputs[0] == "hang":
            self.cancelled.wait()
            inputs = []
        for number, text in enumerate(inputs):
            self.channel.send(Embedded(self.request.id, [struct.pack("<2f", number, len(text))]))
        reason: FinishReason = "cancelled" if self.cancelled.is_set() else "stop"
        n_tokens = sum(map(len, inputs))
        timings = Timings(prompt_seconds=0.01, predicted_seconds=0, major_faults=7, read_bytes=7)
        self.channel.send(Finished(self.request.id, reason, n_tokens, 0, timings))


def wait_for(file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.005)


def load(channel: Channel, message: Load) -> set[str]:
    """Load as the path says; the words that matter later."""
    words = dict(word.partition("=")[::2] for word in message.paths[0].split("+"))
    if "deaf" in words or "hang" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(float(words.get("slow", 0)))
    if "until" in words:
        wait_for(words["until"])
    if "die" in words:
        print("no more memory", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if "fail" in words or "fail-hang" in words:
        channel.send(LoadFailed(words.get("fail", "it hangs")))
        time.sleep(3600 if "fail-hang" in words else 0)
        sys.exit(1)
    if "hang" in words:
        time.sleep(3600)
    if "garbage" in words:
        channel.send_raw(b"\x00\x00\x00\x01\xc0")
    channel.send(
        Ready(
            load_seconds=float(words.get("slow", 0)),
            n_ctx=message.n_ctx or 512,
            n_slots=message.n_slots,
            weights=WeightBytes(anonymous=5_000_000) if "anonymous" in words else WEIGHTS,
            kv_bytes=1_000_000,
        )
    )
    if "pin-fails" in words:
        errno = int(words["pin-fails"])
        channel.send(PinReport(3_000_000, 1_000_000, 1, 0.1, errno, "mlock: raise ulimit -l"))
    return set(words)


def serve(channel: Channel, words: set[str]) -> None:
    running: dict[str, Generation | Embedding] = {}
    while (message := channel.receive()) is not None:
        match message:
            case Generate():
                running = {id: each for id, each in running.items() if each.is_alive()}
                generation = running[message.id] = Generation(channel, message)
                generation.start()
                if message.prompt == "wedge":
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    time.sleep(3600)
            case Embed():
                embedding = running[message.id] = Embedding(channel, message)
                embedding.start()
            case Apply():
                wanted = f"{message.residency} {message.pin} {message.repin_requests}"
                print(f"INFO fake: applies {wanted}", file=sys.stderr, flush=True)
                channel.send(PinReport(3_000_000, 3_000_000, 1, 0.1, 0, ""))
            case Cancel() if message.id in running:
                running[message.id].cancelled.set()
            case Shutdown() if "deaf" not in words:
                for each in running.values():
                    each.cancelled.set()
                for each in running.values():
                    each.join(timeout=2)
                return


def main() -> None:
    channel = Channel(int(sys.argv[sys.argv.index("--fd") + 1]))
    first = channel.receive()
    assert isinstance(first, Load)
    print(f"INFO fake: loading {first.paths[0]}", file=sys.stderr, flush=True)
    serve(channel, load(channel, first))
