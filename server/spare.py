"""A worker process that waits with its library imported: a load costs the disk, little else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from server.host import Spawn
from server.process import WorkerProcess

log = logging.getLogger("corral.spare")

# Starting Python and importing take half a second of a core. The load that has just taken the spare
# one needs it more, and so do requests: on two cores one took twice its time beside a start.
_REFILL_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 1.0
# A load without a spare one takes that half second longer: requests may go on for ever.
_PATIENCE_SECONDS = 30.0


class Spare:
    """Gives workers out, and keeps one more than were asked for, started when nothing else runs or
    after a while. Inside one running event loop.

    It costs the memory of a Python with llama.cpp and without a model, about 50 MB.
    """

    def __init__(
        self,
        start: Spawn = WorkerProcess.start,
        *,
        is_busy: Callable[[], bool] = lambda: False,
        refill_seconds: float = _REFILL_SECONDS,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._start = start
        self._is_busy = is_busy
        self._refill_seconds = refill_seconds
        self._patience_seconds = patience_seconds
        self._waiting: asyncio.Task[WorkerProcess] | None = None
        self._refilling: asyncio.TimerHandle | None = None
        self._endings: set[asyncio.Task[None]] = set()

    def refill(self) -> None:
        """Starts the spare one, unless there is one."""
        if self._waiting is None:
            self._waiting = asyncio.create_task(_started(self._start))

    async def spawn(self, model: str) -> WorkerProcess:
        """The spare worker, or a new one if that failed or has ended. Raises OSError."""
        waiting, self._waiting = self._waiting, None
        self._refill_later()
        if waiting is not None:
            try:
                process = await waiting
            except OSError as error:
                log.warning("no spare worker could be started: %s", error)
            else:
                if process.runs:
                    process.model = model
                    return process
                self._run(_end(process))
        return await self._start(model)

    async def close(self) -> None:
        """Ends the spare one. Returns when no process is left."""
        if self._refilling is not None:
            self._refilling.cancel()
        if self._waiting is not None:
            self._run(_end_started(self._waiting))
        while self._endings:
            await asyncio.wait(self._endings)

    def _refill_later(self) -> None:
        if self._refilling is not None:
            self._refilling.cancel()
        loop = asyncio.get_running_loop()
        latest = loop.time() + self._patience_seconds
        self._refilling = loop.call_later(self._refill_seconds, self._refill_if_idle, latest)

    def _refill_if_idle(self, latest: float) -> None:
        loop = asyncio.get_running_loop()
        if self._is_busy() and loop.time() < latest:
            self._refilling = loop.call_later(_LOOK_AGAIN_SECONDS, self._refill_if_idle, latest)
        else:
            self.refill()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)


async def _started(start: Spawn) -> WorkerProcess:
    return await start("spare")


async def _end_started(waiting: asyncio.Task[WorkerProcess]) -> None:
    try:
        process = await waiting
    except OSError:
        return
    await _end(process)


async def _end(process: WorkerProcess) -> None:
    await asyncio.gather(process.run(lambda _: None), process.stop())
