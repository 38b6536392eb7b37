"""The spare worker: who gets it, what takes its place, and that none is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial

import pytest
from made_calls import FAKE_WORKER, made_spec

from server.process import Graces, WorkerProcess
from server.protocol import Ready, ToDaemon, encode
from server.spare import Spare

GRACES = Graces(shutdown=5, terminate=0.3, hang_up=0.3)


class Starts:
    """Starts fake workers, and knows which."""

    def __init__(self) -> None:
        self.started: list[WorkerProcess] = []

    async def __call__(self, model: str) -> WorkerProcess:
        self.started.append(await WorkerProcess.start(model, FAKE_WORKER, GRACES))
        return self.started[-1]

    async def until(self, n: int) -> None:
        async with asyncio.timeout(10):
            while len(self.started) < n:  # noqa: ASYNC110 - a start sets no event
                await asyncio.sleep(0.005)


async def end(process: WorkerProcess) -> None:
    await asyncio.gather(process.run(lambda _: None), process.stop())


async def test_the_spare_one_serves_the_next_model_and_another_takes_its_place() -> None:
    starts = Starts()
    spare = Spare(starts, refill_seconds=0)
    spare.refill()
    await starts.until(1)
    process = await spare.spawn("m")
    assert process is starts.started[0] and process.model == "m"
    await starts.until(2)

    said: list[ToDaemon] = []
    process.send(encode(made_spec().load))
    running = asyncio.create_task(process.run(said.append))
    async with asyncio.timeout(10):
        while not said:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert isinstance(said[0], Ready)
    await process.stop()
    await running

    await spare.close()
    assert [each.runs for each in starts.started] == [False, False]


async def test_the_next_waits_while_requests_run_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.spare._LOOK_AGAIN_SECONDS", 0.01)
    for patience, busy_looks in ((60.0, 3), (0.0, 1)):
        starts, looks = Starts(), iter([True] * busy_looks)
        spare = Spare(
            starts,
            is_busy=partial(next, looks, False),
            refill_seconds=0,
            patience_seconds=patience,
        )
        taken = await spare.spawn("m")
        await starts.until(2)
        assert next(looks, None) is None, "it was looked until nothing ran"
        await asyncio.gather(end(taken), spare.close())


async def test_without_one_a_worker_is_started() -> None:
    starts = Starts()
    spare = Spare(starts)
    first, second = await spare.spawn("a"), await spare.spawn("b")
    assert [first, second] == starts.started
    await asyncio.gather(end(first), end(second), spare.close())


async def test_one_that_has_died_is_replaced() -> None:
    starts = Starts()
    spare = Spare(starts)
    spare.refill()
    await starts.until(1)
    dead = starts.started[0]
    os.kill(dead.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        while dead.runs:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    process = await spare.spawn("m")
    assert process is starts.started[1] and process.runs
    await asyncio.gather(end(process), spare.close())


async def test_one_that_cannot_be_started_costs_nothing_but_time() -> None:
    starts = Starts()
    fails = iter([True])

    async def start(model: str) -> WorkerProcess:
        if next(fails, False):
            raise OSError("no more processes")
        return await starts(model)

    spare = Spare(start)
    spare.refill()
    process = await spare.spawn("m")
    assert process is starts.started[0]
    await asyncio.gather(end(process), spare.close())


async def test_one_that_is_being_started_at_the_end_is_ended() -> None:
    spare = Spare(starts := Starts())
    spare.refill()
    await spare.close()
    assert [each.runs for each in starts.started] == [False]


async def test_a_start_that_fails_at_the_end_is_no_fault() -> None:
    spare = Spare(partial(WorkerProcess.start, argv=("/nonexistent/worker",)))
    spare.refill()
    await spare.close()
