"""The serving core over real processes with a fake worker in them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import struct
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from made_calls import FAKE_WORKER, made_call, made_embed, made_spec

from server.calls import Begun, Call, CallEvent, Ended, LoadedModel, ModelSpec, Text, Vectors
from server.core import ServingCore
from server.errors import (
    BadRequest,
    LoadError,
    QueueFull,
    ServingError,
    ShuttingDown,
    TimedOut,
    WorkerDied,
    WorkerWedged,
)
from server.ledgers import Ledgers
from server.metrics import Metrics
from server.process import Graces, WorkerProcess
from server.protocol import MAX_FRAME_BYTES, Ready, ToDaemon
from server.request import Request
from server.scheduler import Scheduler

GRACES = Graces(shutdown=0.5, terminate=0.2, hang_up=0.2)


class Bench:
    """A core, and sight of what it did."""

    def __init__(
        self,
        *,
        max_queue: int = 100,
        max_loaded: int = 3,
        grace: float = 0.3,
        kind: type[WorkerProcess] = WorkerProcess,
        request_timeout: float | None = None,
        decode_timeout: float | None = None,
    ) -> None:
        self.metrics = Metrics(Ledgers())
        self.scheduler = Scheduler(
            max_queue=max_queue,
            max_loaded=max_loaded,
            request_timeout=request_timeout,
            decode_timeout=decode_timeout,
        )
        self.core = ServingCore(
            self.scheduler,
            self.metrics,
            spawn=partial(kind.start, argv=FAKE_WORKER, graces=GRACES),
            grace=grace,
        )

    def value(self, metric: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(metric, labels)

    async def until(self, true: Callable[[], bool]) -> None:
        """Waits for what some message of a worker brings about."""
        async with asyncio.timeout(10):
            while not true():  # noqa: ASYNC110 - what the scheduler did sets no event
                await asyncio.sleep(0.005)

    async def loaded(self, spec: ModelSpec) -> LoadedModel:
        await self.core.load(spec)
        return next(m for m in self.core.loaded() if m.spec.name == spec.name)

    async def at_rest(self, state: str) -> None:
        await self.until(lambda: repr(self.scheduler) == f"<Scheduler {state}>")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.core.close()


async def events(core: ServingCore, call: Call) -> list[CallEvent]:
    return [event async for event in core.generate(call)]


def text_of(answer: list[CallEvent]) -> str:
    return "".join(event.text for event in answer if isinstance(event, Text))


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# -- a request's way -------------------------------------------------------------------------


async def test_a_request_loads_its_model_and_gets_begun_text_and_ended(bench: Bench) -> None:
    first = await events(bench.core, made_call(made_spec(path="slow=0.2"), "echo 3"))
    assert isinstance(first[0], Begun) and first[0].prompt_tokens == 2
    assert first[0].load_seconds >= 0.2
    assert text_of(first) == "w0 w1 w2 "
    ended = first[-1]
    assert isinstance(ended, Ended) and (ended.reason, ended.completion_tokens) == ("stop", 3)
    assert ended.timings.major_faults == 7
    second = await events(bench.core, made_call(made_spec(), "echo 9"))
    assert isinstance(second[0], Begun) and second[0].load_seconds == 0
    assert isinstance(second[-1], Ended) and second[-1].reason == "length"


async def test_requests_for_a_model_that_loads_wait_and_others_do_not_notice(
    bench: Bench, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    slow = made_spec("slow", path=f"until={gate}")
    waiting = asyncio.create_task(events(bench.core, made_call(slow)))
    await events(bench.core, made_call(made_spec("quick")))
    assert not waiting.done()
    gate.touch()
    assert text_of(await waiting) == "w0 w1 w2 "


async def test_many_requests_all_get_their_own_answer(bench: Bench) -> None:
    spec = made_spec(n_slots=3)
    calls = [made_call(spec, f"echo {n}", max_tokens=-1) for n in range(20)]
    answers = await asyncio.gather(*(events(bench.core, call) for call in calls))
    assert [text_of(answer).count("w") for answer in answers] == list(range(20))
    await bench.at_rest("a:latest=ready 0/3; waiting 0")


async def test_a_client_that_does_not_read_gets_the_whole_answer_in_one_piece(bench: Bench) -> None:
    stream = bench.core.generate(made_call(made_spec(), "echo 2000", max_tokens=-1))
    begun = await anext(stream)
    await bench.at_rest("a:latest=ready 0/1; waiting 0")
    rest = [event async for event in stream]
    assert isinstance(begun, Begun)
    assert [type(event) for event in rest] == [Text, Ended]
    assert text_of(rest).count("w") == 2000


# -- embeddings ------------------------------------------------------------------------------


async def test_embeddings_come_in_the_order_of_their_inputs(bench: Bench) -> None:
    call = made_embed(made_spec(path="slow=0.2"), "a", "bbb", [7, 8])
    *vectors, begun, ended = [event async for event in bench.core.embed(call)]
    found = [each for event in vectors if isinstance(event, Vectors) for each in event.vectors]
    assert [struct.unpack("<2f", each) for each in found] == [(0, 1), (1, 3), (2, 2)]
    assert isinstance(begun, Begun) and begun.load_seconds >= 0.2
    assert isinstance(ended, Ended) and (ended.prompt_tokens, ended.completion_tokens) == (6, 0)


async def test_an_embedding_is_counted_and_logged_as_other_requests(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async for _ in bench.core.embed(made_embed(made_spec(), "abc")):
        pass
    counted = {"model": "a:latest", "endpoint": "/v1/embeddings", "status": "200"}
    assert bench.value("corral_requests_total", **counted) == 1
    assert bench.value("corral_prompt_tokens_total", model="a:latest") == 3
    assert bench.value("corral_queue_seconds_count", model="a:latest") == 1
    assert bench.value("corral_request_duration_seconds_count", model="a:latest") == 1
    # Its tokens are looked up in no prefix cache, and it has no first token.
    assert bench.value("corral_prefix_cache_queries_total", model="a:latest") is None
    assert bench.value("corral_time_to_first_token_seconds_count", model="a:latest") is None
    assert "endpoint=/v1/embeddings status=200 prompt_tokens=3 completion_tokens=0" in caplog.text


async def test_embeddings_run_beside_a_full_slot_and_give_it_back(bench: Bench) -> None:
    stream = bench.core.generate(made_call(made_spec(), "hang"))
    await anext(stream)
    async for _ in bench.core.embed(made_embed(made_spec(), "abc")):
        pass
    await stream.aclose()
    hanging = bench.core.embed(made_embed(made_spec(), "hang"))
    waiting = asyncio.create_task(anext(hanging))
    await bench.at_rest("a:latest=ready 1/1; waiting 0")
    assert text_of(await events(bench.core, made_call(made_spec(), "echo 1"))) == "w0 "
    waiting.cancel()
    await asyncio.wait([waiting])
    await bench.at_rest("a:latest=ready 0/1; waiting 0")
    counted = {"model": "a:latest", "endpoint": "/v1/embeddings", "status": "499"}
    await bench.until(lambda: bench.value("corral_requests_total", **counted) == 1)


async def test_an_embedding_past_its_deadline_is_cancelled(bench: Bench) -> None:
    late = Bench(request_timeout=0.2)
    with pytest.raises(TimedOut):
        async for _ in late.core.embed(made_embed(made_spec(), "hang")):
            pass
    await late.at_rest("a:latest=ready 0/1; waiting 0")
    await late.core.close()


async def test_the_cells_of_another_context_are_counted(bench: Bench) -> None:
    model = await bench.loaded(made_spec())
    assert model.ready is not None and model.ready.kv_bytes == 1_000_000
    async for _ in bench.core.embed(made_embed(made_spec(), "abc")):
        pass
    (model,) = bench.core.loaded()
    assert model.ready is not None and model.ready.kv_bytes == 1_500_000


# -- errors ----------------------------------------------------------------------------------


async def test_what_the_worker_rejects_is_a_bad_request_that_names_the_parameter(
    bench: Bench,
) -> None:
    with pytest.raises(BadRequest, match="too long for it") as caught:
        await events(bench.core, made_call(made_spec(), "reject too long for it"))
    assert caught.value.param == "prompt"
    await bench.at_rest("a:latest=ready 0/1; waiting 0")


async def test_a_prompt_longer_than_a_message_is_a_bad_request(bench: Bench) -> None:
    with pytest.raises(BadRequest, match="the prompt is too long"):
        await events(bench.core, made_call(made_spec(), "x" * (MAX_FRAME_BYTES + 1)))
    assert bench.core.loaded() == []


async def test_an_error_of_the_engine_ends_the_stream_after_its_text(bench: Bench) -> None:
    stream = bench.core.generate(made_call(made_spec(), "error no KV cells left"))
    assert isinstance(await anext(stream), Begun)
    with pytest.raises(ServingError, match="no KV cells left"):
        async for event in stream:
            assert isinstance(event, Text)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("fail=no such tensor", "no such tensor"),
        ("fail-hang", "it hangs"),
        ("die", "OOM killer.*no more memory"),
        ("garbage", "broke the protocol"),
    ],
)
async def test_a_load_that_fails_is_told_to_all_who_wait_and_tried_again_by_the_next(
    bench: Bench, path: str, message: str
) -> None:
    bad = made_spec(path=path)
    results = await asyncio.gather(
        events(bench.core, made_call(bad)),
        events(bench.core, made_call(bad)),
        bench.core.load(bad),
        return_exceptions=True,
    )
    for error in results:
        assert isinstance(error, LoadError)
    with pytest.raises(LoadError, match=message):
        raise results[0]  # type: ignore[misc]
    assert bench.core.loaded() == []
    assert text_of(await events(bench.core, made_call(made_spec()))) == "w0 w1 w2 "


async def test_a_worker_that_cannot_be_started_is_a_load_error() -> None:
    core = ServingCore(
        Scheduler(max_queue=1, max_loaded=1),
        Metrics(Ledgers()),
        spawn=partial(WorkerProcess.start, argv=("/nonexistent/worker",)),
    )
    with pytest.raises(LoadError, match="could not be started"):
        await core.load(made_spec())
    await core.close()


@pytest.mark.parametrize(("verb", "cause"), [("crash", "SIGSEGV"), ("kill", "SIGKILL")])
async def test_a_worker_that_dies_ends_its_streams_and_no_others(
    bench: Bench, tmp_path: Path, verb: str, cause: str
) -> None:
    spec, other = made_spec("a"), made_spec("b")
    gate = tmp_path / "gate"
    running = asyncio.create_task(events(bench.core, made_call(other, f"until {gate}")))
    await bench.core.load(other)
    dying = bench.core.generate(made_call(spec, f"{verb} 2"))
    assert isinstance(await anext(dying), Begun)
    waiting = asyncio.create_task(events(bench.core, made_call(spec, "echo 1")))
    with pytest.raises(WorkerDied, match=f"the worker of a ended by {cause}"):
        async for event in dying:
            assert isinstance(event, Text)
    assert text_of(await waiting) == "w0 "
    gate.touch()
    assert text_of(await running) == "w0 "


async def test_a_full_queue_refuses_before_anything_is_sent() -> None:
    bench = Bench(max_queue=1)
    spec = made_spec(path="slow=0.3")
    waiting = asyncio.create_task(events(bench.core, made_call(spec)))
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await events(bench.core, made_call(spec))
    assert text_of(await waiting) == "w0 w1 w2 "
    await bench.core.close()


# -- cancelling ------------------------------------------------------------------------------


async def test_closing_the_stream_of_a_running_request_frees_its_slot(bench: Bench) -> None:
    stream = bench.core.generate(made_call(made_spec(), "hang"))
    assert isinstance(await anext(stream), Begun)
    waiting = asyncio.create_task(events(bench.core, made_call(made_spec(), "echo 1")))
    await stream.aclose()
    assert text_of(await waiting) == "w0 "
    assert bench.value(
        "corral_requests_total", model="a:latest", endpoint="/v1/completions", status="499"
    )


@pytest.mark.parametrize("path", ["until=/nonexistent", "ok"], ids=["loading", "waiting"])
async def test_a_cancelled_task_takes_its_waiting_request_with_it(bench: Bench, path: str) -> None:
    spec = made_spec(path=path)
    holder = bench.core.generate(made_call(spec, "hang"))
    if path == "ok":
        await anext(holder)
    task = asyncio.create_task(events(bench.core, made_call(spec)))
    await bench.until(lambda: bench.scheduler.waiting(spec.name) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.scheduler.waiting(spec.name) == 0
    await holder.aclose()


async def test_a_load_that_is_cancelled_goes_on_for_nobody(bench: Bench, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    task = asyncio.create_task(bench.core.load(made_spec(path=f"until={gate}")))
    await bench.at_rest("a:latest=loading 0/1; waiting a:latest+1")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.touch()
    await bench.at_rest("a:latest=ready 0/1; waiting 0")


class EndsCancelled(WorkerProcess):
    """The task that loads is cancelled in the very moment in which the load ends."""

    load: ClassVar[asyncio.Task[None]]

    async def run(self, on_message: Callable[[ToDaemon], None]) -> str:
        def cancel_first(message: ToDaemon) -> None:
            if isinstance(message, Ready):
                self.load.cancel()
            on_message(message)

        why = await super().run(cancel_first)
        self.load.cancel()
        return why


@pytest.mark.parametrize(
    ("path", "state"), [("ok", "a:latest=ready 0/1; waiting 0"), ("die", "empty; waiting 0")]
)
async def test_a_load_that_is_cancelled_while_it_ends_harms_nobody(path: str, state: str) -> None:
    bench = Bench(kind=EndsCancelled)
    EndsCancelled.load = asyncio.create_task(bench.core.load(made_spec(path=path)))
    with pytest.raises(asyncio.CancelledError):
        await EndsCancelled.load
    await bench.at_rest(state)
    assert text_of(await events(bench.core, made_call(made_spec()))) == "w0 w1 w2 "
    await bench.core.close()


# -- models ----------------------------------------------------------------------------------


async def test_load_and_loaded_tell_of_the_model(bench: Bench) -> None:
    before = time.time()
    model = await bench.loaded(made_spec(keep_alive=100))
    assert model.ready is not None and model.ready.n_ctx == 512
    assert model.expires_at is not None and before + 99 < model.expires_at < time.time() + 101
    assert not gone(model.pid)


async def test_a_loaded_model_tells_the_keep_alive_of_its_last_request(bench: Bench) -> None:
    await bench.core.load(made_spec(keep_alive=300))
    await events(bench.core, made_call(made_spec(keep_alive=-1)))
    (model,) = bench.core.loaded()
    assert (model.spec.keep_alive, model.expires_at) == (-1, None)


async def test_unload_returns_when_the_process_is_gone(bench: Bench) -> None:
    model = await bench.loaded(made_spec())
    await bench.core.unload("a:latest")
    assert gone(model.pid)
    await bench.core.unload("a:latest")


async def test_unload_waits_for_running_requests(bench: Bench) -> None:
    stream = bench.core.generate(made_call(made_spec(), "slow 3 0.05"))
    await anext(stream)
    unload = asyncio.create_task(bench.core.unload("a:latest"))
    assert text_of([event async for event in stream]) == "w0 w1 w2 "
    await unload


async def test_a_wedged_worker_is_unloaded_when_nobody_waits_for_it(bench: Bench) -> None:
    model = await bench.loaded(made_spec())
    stream = bench.core.generate(made_call(made_spec(), "wedge"))
    await anext(stream)
    await stream.aclose()
    await bench.core.unload("a:latest")
    assert gone(model.pid)


async def test_a_load_that_hangs_can_be_unloaded(bench: Bench) -> None:
    load = asyncio.create_task(bench.core.load(made_spec(path="hang")))
    await bench.until(lambda: len(bench.core.loaded()) == 1)
    (model,) = bench.core.loaded()
    load.cancel()
    await bench.core.unload("a:latest")
    assert gone(model.pid)
    with pytest.raises(asyncio.CancelledError):
        await load


async def test_an_idle_model_is_unloaded_when_its_keep_alive_is_over(bench: Bench) -> None:
    await bench.core.load(made_spec(keep_alive=0.05))
    await bench.at_rest("empty; waiting 0")
    assert bench.core.loaded() == []


async def test_a_load_with_keep_alive_0_answers_and_unloads(bench: Bench) -> None:
    await bench.core.load(made_spec(keep_alive=0))
    await bench.at_rest("empty; waiting 0")


async def test_a_further_model_takes_the_place_of_an_idle_one() -> None:
    bench = Bench(max_loaded=1)
    first = await bench.loaded(made_spec("a"))
    assert text_of(await events(bench.core, made_call(made_spec("b")))) == "w0 w1 w2 "
    assert gone(first.pid)
    await bench.core.close()


async def test_a_death_that_ends_a_load_and_starts_another_model_does_both() -> None:
    bench = Bench(max_loaded=2)
    a, b, c = made_spec("a"), made_spec("b"), made_spec("c")
    dying = await bench.loaded(b)
    busy = [bench.core.generate(made_call(spec, "hang")) for spec in (a, b)]
    for stream in busy:
        await anext(stream)
    # c takes the place of a, once that is idle; so the load of a must wait …
    other = asyncio.create_task(events(bench.core, made_call(c)))
    await bench.until(lambda: bench.scheduler.waiting("c") == 1)
    load = asyncio.create_task(bench.core.load(a))
    await bench.until(lambda: bench.scheduler.waiting("a") == 1)
    # … until b leaves its place to c.
    os.kill(dying.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        await load
        assert text_of(await other) == "w0 w1 w2 "
    await bench.core.close()


# -- shutdown --------------------------------------------------------------------------------


async def test_close_lets_run_what_ends_in_time(tmp_path: Path) -> None:
    bench = Bench(grace=60)
    gate = tmp_path / "gate"
    stream = bench.core.generate(made_call(made_spec(), f"until {gate}"))
    await anext(stream)
    close = asyncio.create_task(bench.core.close())
    with pytest.raises(ShuttingDown):
        await events(bench.core, made_call(made_spec("late")))
    gate.touch()
    assert text_of([event async for event in stream]) == "w0 "
    await close


async def test_a_hurried_close_waits_for_no_request() -> None:
    bench = Bench(grace=3600)
    hangs = asyncio.create_task(events(bench.core, made_call(made_spec(), "hang")))
    await bench.until(lambda: sum(each.running for each in bench.core.loaded()) == 1)
    close = asyncio.create_task(bench.core.close())
    with pytest.raises(ShuttingDown):
        await bench.core.load(made_spec("late"))
    bench.core.hurry()
    await close
    with pytest.raises(ShuttingDown):
        await hangs


async def test_close_tells_those_whose_time_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "corral.request")
    bench = Bench()
    hanging, wedged = made_spec("hang"), made_spec("wedge")
    for spec in (hanging, wedged):
        await bench.core.load(spec)
    pids = [model.pid for model in bench.core.loaded()]
    hangs = asyncio.create_task(events(bench.core, made_call(hanging, "hang")))
    waits = asyncio.create_task(events(bench.core, made_call(hanging, "echo 1")))
    wedges = asyncio.create_task(events(bench.core, made_call(wedged, "wedge")))
    await bench.until(lambda: sum(each.running for each in bench.core.loaded()) == 2)
    await bench.core.close()
    for refused in (hangs, waits, wedges):
        with pytest.raises(ShuttingDown):
            await refused
    lines = [r.getMessage() for r in caplog.records if r.name == "corral.request"]
    assert sorted(line.split("status=")[1][:3] for line in lines) == ["503", "503", "503"]
    assert all(gone(pid) for pid in pids)
    with pytest.raises(ShuttingDown):
        await bench.core.load(hanging)
    assert bench.core.loaded() == []


async def test_close_while_a_worker_is_being_started() -> None:
    bench = Bench()
    load = asyncio.create_task(bench.core.load(made_spec(path="hang")))
    await asyncio.sleep(0)
    await bench.core.close()
    with pytest.raises(ShuttingDown):
        await load


# -- what the operator sees ------------------------------------------------------------------


async def test_one_log_line_tells_of_a_request_and_never_of_its_prompt(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    call = made_call(made_spec(), "echo 2 secret")
    with caplog.at_level(logging.INFO, "corral.request"):
        await events(bench.core, call)
    (record,) = (r for r in caplog.records if r.name == "corral.request")
    line = record.getMessage()
    assert line.startswith(
        f"id={call.id} model=a:latest endpoint=/v1/completions status=200 "
        "prompt_tokens=3 completion_tokens=2 ttft=0."
    )
    assert "major_faults=7 read_bytes=4096" in line and "secret" not in caplog.text


async def test_a_fault_of_the_daemon_ends_the_request_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_request: Request, _prompt_tokens: int) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Request, "accept", fail)
    with pytest.raises(WorkerDied, match="the daemon failed"):
        await events(bench.core, made_call(made_spec()))
    monkeypatch.undo()
    assert await events(bench.core, made_call(made_spec()))


async def test_the_metrics_of_a_request(bench: Bench) -> None:
    await events(bench.core, made_call(made_spec(), "echo 3 times"))
    for metric, value in {
        "corral_prompt_tokens_total": 3,
        "corral_generation_tokens_total": 3,
        "corral_time_to_first_token_seconds_count": 1,
        "corral_inter_token_latency_seconds_count": 2,
        "corral_queue_seconds_count": 1,
        "corral_request_duration_seconds_count": 1,
    }.items():
        assert bench.value(metric, model="a:latest") == value, metric


async def test_a_model_that_ends_takes_its_series_however_it_ends(bench: Bench) -> None:
    await events(bench.core, made_call(made_spec("a")))
    assert b'model="a"' in bench.metrics.render()
    await bench.core.unload("a")
    assert b'model="a"' not in bench.metrics.render()
    with pytest.raises(WorkerDied):
        await events(bench.core, made_call(made_spec("b"), "crash 1"))
    assert b'model="b"' not in bench.metrics.render()


async def test_the_end_of_a_worker_is_a_warning_unless_it_was_asked_for(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "corral.core")
    await bench.core.load(made_spec("asked"))
    await bench.core.unload("asked")
    for spec in (made_spec("failed", path="fail=no"), made_spec("died", path="die")):
        with pytest.raises(LoadError):
            await bench.core.load(spec)
    ends = [r for r in caplog.records if " ended: " in r.msg]
    assert [r.levelname for r in ends] == ["INFO", "WARNING", "WARNING"]


@pytest.mark.parametrize(("errno", "label"), [(12, "ENOMEM"), (0, "0")])
async def test_a_pin_that_fell_short_is_one_warning_and_counted(
    bench: Bench, caplog: pytest.LogCaptureFixture, errno: int, label: str
) -> None:
    await bench.core.load(made_spec(path=f"pin-fails={errno}"))
    await bench.until(
        lambda: bench.value("corral_pin_failures_total", model="a:latest", errno=label) == 1
    )
    (warning,) = (r for r in caplog.records if r.levelno == logging.WARNING and "pin" in r.msg)
    assert "1000000 of 3000000 bytes" in warning.getMessage()
    assert "raise ulimit -l" in warning.getMessage()
    assert text_of(await events(bench.core, made_call(made_spec()))) == "w0 w1 w2 "


# -- changes while loaded --------------------------------------------------------------------


async def test_a_change_reaches_the_worker_and_shows_in_what_is_told(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await bench.core.load(made_spec(path="pin-fails=12"))
    await bench.until(lambda: any(model.pin for model in bench.core.loaded()))
    (before,) = bench.core.loaded()
    assert before.pin is not None
    assert (before.pin.bytes_locked, before.pin.errno) == (1_000_000, 12)
    assert bench.core.apply(made_spec(residency="pinned"))
    (model,) = bench.core.loaded()
    assert (model.pid, model.spec.load.residency) == (before.pid, "pinned")
    assert bench.value("corral_weight_residency_info", model="a:latest", mode="pinned") == 1
    await bench.until(lambda: all(m.pin and not m.pin.message for m in bench.core.loaded()))
    assert "applies pinned [] 0" in caplog.text
    caplog.clear()
    assert bench.core.apply(made_spec(residency="pinned")), "it is so already"
    assert text_of(await events(bench.core, made_call(made_spec(residency="pinned"))))
    assert [m.pid for m in bench.core.loaded()] == [before.pid], "no reload"
    assert "applies" not in caplog.text


async def test_a_model_that_is_loading_takes_over_the_last_of_several_changes(
    bench: Bench, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO)
    path = f"until={tmp_path / 'go'}"
    load = asyncio.create_task(bench.core.load(made_spec(path=path)))
    await asyncio.sleep(0)
    # Before there is a process, and when it loads: the load itself, and a message behind it.
    assert bench.core.apply(made_spec(path=path, residency="pinned"))
    await bench.until(lambda: bench.core.loaded() != [])
    for mode in ("eager", "lazy"):
        assert bench.core.apply(made_spec(path=path, residency=mode))
    (tmp_path / "go").touch()
    await load
    await bench.until(lambda: "applies lazy" in caplog.text)
    assert "applies pinned" not in caplog.text
    assert caplog.text.index("applies eager") < caplog.text.index("applies lazy")
    assert [model.spec.load.residency for model in bench.core.loaded()] == ["lazy"]


async def test_what_cannot_change_while_loaded_waits_for_the_next_load(bench: Bench) -> None:
    assert not bench.core.apply(made_spec(residency="lazy")), "not loaded"
    await bench.core.load(made_spec())
    other = made_spec(identity="other weights", residency="lazy")
    assert not bench.core.apply(other)
    assert [model.spec.load.residency for model in bench.core.loaded()] == ["eager"]
    await bench.core.unload("a:latest")
    await bench.core.load(made_spec(path="anonymous"))
    assert not bench.core.apply(made_spec(path="anonymous", residency="lazy")), "nothing is mapped"


# -- timeouts --------------------------------------------------------------------------------


@pytest.fixture
async def hasty() -> AsyncIterator[Bench]:
    made = Bench(request_timeout=0.3)
    yield made
    await made.core.close()


async def test_a_request_past_its_deadline_ends_with_an_error_though_its_model_loads(
    hasty: Bench, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with pytest.raises(TimedOut, match="CORRAL_REQUEST_TIMEOUT"):
        await events(hasty.core, made_call(made_spec(path=f"until={gate}")))
    gate.touch()
    await hasty.at_rest("a:latest=ready 0/1; waiting 0")


async def test_a_stream_past_its_deadline_ends_with_an_error_and_its_slot_comes_free(
    hasty: Bench,
) -> None:
    await hasty.core.load(made_spec())
    seen = []
    with pytest.raises(TimedOut):
        async for event in hasty.core.generate(
            made_call(made_spec(), "slow 900 0.01", max_tokens=-1)
        ):
            seen.append(event)
    assert isinstance(seen[0], Begun) and "w0 " in text_of(seen)
    assert text_of(await events(hasty.core, made_call(made_spec(), "echo 2"))) == "w0 w1 "
    timed_out = {"model": "a:latest", "endpoint": "/v1/completions", "status": "504"}
    assert hasty.value("corral_requests_total", **timed_out) == 1


async def test_a_wedged_worker_is_killed_its_requests_fail_and_the_next_one_loads_again() -> None:
    bench = Bench(decode_timeout=0.3)
    spec = made_spec(n_slots=2)
    model = await bench.loaded(spec)
    runs = asyncio.create_task(events(bench.core, made_call(spec, "slow 900 0.01", max_tokens=-1)))
    with pytest.raises(WorkerWedged, match="sent nothing for the"):
        await events(bench.core, made_call(spec, "stall"))
    with pytest.raises(WorkerWedged):
        await runs
    again = await events(bench.core, made_call(spec, "echo 2"))
    assert text_of(again) == "w0 w1 "
    assert gone(model.pid)
    assert bench.core.loaded()[0].pid != model.pid
    await bench.core.close()


async def test_the_unload_of_a_wedged_worker_ends_with_its_death() -> None:
    bench = Bench(decode_timeout=0.3)
    model = await bench.loaded(made_spec())
    stream = bench.core.generate(made_call(made_spec(), "stall"))
    await anext(stream)
    unload = asyncio.create_task(bench.core.unload("a:latest"))
    with pytest.raises(WorkerWedged):
        await anext(stream)
    await unload
    assert gone(model.pid)
    await bench.at_rest("empty; waiting 0")
    await bench.core.close()


async def test_a_worker_that_speaks_now_and_then_is_not_wedged() -> None:
    bench = Bench(decode_timeout=0.5)
    answer = await events(bench.core, made_call(made_spec(), "slow 8 0.1"))
    assert text_of(answer).count("w") == 8
    await bench.core.close()
