"""Blocking work in a thread that tells its progress and can be cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from typing import Generic, TypeVar

P = TypeVar("P")


class WorkCancelled(Exception):
    """Raised in the thread, out of the progress callback, so that the work cleans up."""


class Background(Generic[P]):
    """One piece of work: `work(report)` runs in a thread and calls report now and then."""

    def __init__(self, executor: Executor, work: Callable[[Callable[[P], None]], object]) -> None:
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._cancelled = threading.Event()
        # Unbounded, but the work reports a step or a percent, not a chunk.
        self._reports: asyncio.Queue[P | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(work))

    async def progress(self) -> AsyncGenerator[P]:
        """The reports as they come. Raises what the work raised."""
        while (report := await self._reports.get()) is not None:
            yield report
        # Shielded: a reader that gives up must not take the thread's end out of sight.
        await asyncio.shield(self._task)

    async def aclose(self) -> None:
        """Cancel the work at its next report, and wait until it has cleaned up."""
        self._cancelled.set()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            # Nobody listens to how it failed any more.
            self._task.exception()

    async def _run(self, work: Callable[[Callable[[P], None]], object]) -> None:
        try:
            await self._loop.run_in_executor(self._executor, work, self._report)
        finally:
            self._reports.put_nowait(None)

    def _report(self, report: P) -> None:
        if self._cancelled.is_set():
            raise WorkCancelled
        self._loop.call_soon_threadsafe(self._reports.put_nowait, report)
