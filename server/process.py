"""The mechanism of one worker process: starts it, carries messages, reaps it, explains its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from server import protocol
from server.channel import Channel
from server.protocol import ProtocolError, Shutdown, ToDaemon

log = logging.getLogger("corral.worker")

# -P: the daemon's working folder may hold a `server` or `numpy` of its own.
WORKER = (sys.executable, "-P", "-m", "server.worker")
_CODE = str(Path(__file__).parents[1])
_MAX_LINE_BYTES = 4096
_CAUSES: dict[int, str] = {
    signal.SIGKILL: "killed, perhaps by the kernel's OOM killer: see dmesg",
    signal.SIGBUS: "a file of the model was truncated or cannot be read: pull or create it again",
    signal.SIGSEGV: "crash in native code",
    signal.SIGABRT: "native code gave up",
    signal.SIGILL: "the library was built for another CPU",
}


@dataclass(frozen=True)
class Graces:
    """Seconds that a worker is given before the next, harder means of ending it."""

    shutdown: float = 10
    """After Shutdown: a large model's memory takes a while to free."""
    terminate: float = 2
    """After SIGTERM, which ends a worker at once: what is left is the freeing of its memory,
    and a process that the kernel holds in a read would not end by SIGKILL either."""
    hang_up: float = 5
    """After the worker closed its end of the socket unasked. It is exiting then and has
    freed the model; native threads may still be joined."""
    output: float = 1
    """After its exit, to read what it printed last."""


class WorkerProcess:
    """One started worker. Somebody has to await run(), which ends when the process has."""

    def __init__(
        self,
        model: str,
        process: Process,
        channel: Channel,
        graces: Graces,
    ) -> None:
        self.pid = process.pid
        self.model = model
        """Whose it is, for the log."""
        self._process = process
        self._channel = channel
        self._graces = graces
        self._last_line = ""
        self._stopping = False
        self._killed_for: str | None = None

    @classmethod
    async def start(
        cls, model: str, argv: Sequence[str] = WORKER, graces: Graces | None = None
    ) -> WorkerProcess:
        """Start a worker for the model. Raises OSError if that is not possible.

        It gets a session of its own: Ctrl-C in a terminal reaches the daemon alone, which
        then ends its workers in order.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            channel = await Channel.over(ours)
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    "--fd",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=DEVNULL,
                    stdout=PIPE,
                    stderr=STDOUT,
                    env=_environment(),
                    start_new_session=True,
                )
            except OSError:
                channel.close()
                raise
        return cls(model, process, channel, graces or Graces())

    @property
    def runs(self) -> bool:
        return self._process.returncode is None

    def send(self, frame: bytes) -> None:
        """Send a frame made by protocol.encode, without waiting for a worker that is slow to read.

        What may pile up is bounded by who calls: a Generate and a Cancel for each slot.
        """
        self._channel.send(frame)

    async def run(self, on_message: Callable[[ToDaemon], None]) -> str:
        """Pass on every message until the process has ended and is reaped; says why it ended.

        What is no message, or what on_message refuses with ProtocolError, ends the worker.
        """
        output = asyncio.create_task(self._log_output())
        try:
            fault = await self._read(on_message)
            await self._reap(fault)
        finally:
            if self._process.returncode is None:
                self._process.kill()
            code = await self._process.wait()
            self._channel.close()
            await asyncio.wait([output], timeout=self._graces.output)
            output.cancel()
        if self._stopping:
            return "stopped"
        if self._killed_for is not None:
            return f"was killed: {self._killed_for}"
        return explain(code, self._last_line) if fault is None else f"killed: {fault}"

    async def stop(self) -> None:
        """End the process: Shutdown, then SIGTERM, then SIGKILL. Returns when it has exited."""
        self._stopping = True
        self.send(protocol.encode(Shutdown()))
        if await self._exits_within(self._graces.shutdown):
            return
        log.warning("model=%s pid=%d does not shut down: SIGTERM", self.model, self.pid)
        self._process.terminate()
        if await self._exits_within(self._graces.terminate):
            return
        log.warning("model=%s pid=%d ignores SIGTERM: SIGKILL", self.model, self.pid)
        self._process.kill()
        await self._process.wait()

    def kill(self, why: str) -> None:
        """End the process at once, whatever it does; run() then says why."""
        self._killed_for = why
        if self._process.returncode is None:
            self._process.kill()

    async def _read(self, on_message: Callable[[ToDaemon], None]) -> str | None:
        """Messages until the worker hangs up; what was wrong if it sent none."""
        try:
            await self._channel.receive(on_message)
        except ProtocolError as error:
            return f"it broke the protocol: {error}"
        return None

    async def _reap(self, fault: str | None) -> None:
        if fault is not None:
            log.error("model=%s pid=%d %s", self.model, self.pid, fault)
            self._process.kill()
        elif not self._stopping and not await self._exits_within(self._graces.hang_up):
            self._process.kill()
        await self._process.wait()

    async def _exits_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _log_output(self) -> None:
        assert self._process.stdout is not None
        async for line in _lines(self._process.stdout):
            level, text = leveled(line)
            log.log(level, "model=%s %s", self.model, text)
            self._last_line = text


def _environment() -> dict[str, str]:
    """The daemon's, so that the worker runs the same code; the keys are no business of native
    code that reads strangers' files. A native abort shall print its reason last, and not what
    a debugger has to say."""
    environ = {name: text for name, text in os.environ.items() if name != "CORRAL_API_KEYS"}
    path = environ.get("PYTHONPATH")
    environ["PYTHONPATH"] = f"{_CODE}{os.pathsep}{path}" if path else _CODE
    return {**environ, "GGML_NO_BACKTRACE": "1"}


def leveled(line: str) -> tuple[int, str]:
    """The level that a worker's line begins with, and the rest of the line.

    One without is a traceback, or native code that speaks past the worker's log: a warning.
    """
    word, _, rest = line.partition(" ")
    level = logging.getLevelNamesMapping().get(word)
    return (logging.WARNING, line) if level is None else (level, rest)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines that say something; one that is too long comes in pieces."""
    rest = b""
    while chunk := await stream.read(_MAX_LINE_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            whole, rest = [*whole, rest], b""
        for line in whole:
            if text := line.decode(errors="replace").rstrip():
                yield text
    if text := rest.decode(errors="replace").rstrip():
        yield text


def explain(code: int, last_line: str) -> str:
    """Why a process ended, from its exit status (negative: the signal) and its last words."""
    if code >= 0:
        how = f"exited with status {code}"
    else:
        how = signal.strsignal(-code) or "unknown signal"
        with suppress(ValueError):
            how = signal.Signals(-code).name
        cause = _CAUSES.get(-code)
        how = f"ended by {how}" + (f" ({cause})" if cause else "")
    return f"{how}; its last words: {last_line}" if last_line else how
