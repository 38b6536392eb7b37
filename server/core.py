"""The serving core: feeds what happens to the scheduler and carries out what it decides.

Everything here runs on the event loop's thread and between two awaits, so it needs no lock:
an event is one call of the scheduler, whose effects are carried out before the next event.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine

from server import protocol
from server.calls import Call, CallEvent, EmbedCall, Ended, LoadedModel, ModelSpec
from server.effects import (
    CancelRunning,
    Effect,
    Fail,
    KillWorker,
    Loaded,
    Reject,
    StartWorker,
    StopWorker,
    Submit,
)
from server.errors import BadRequest, ServingError, ShuttingDown
from server.host import Host, Spawn, log_pin, recall_nothing
from server.metrics import Metrics
from server.process import WorkerProcess
from server.protocol import (
    Accepted,
    Cancel,
    ContextGrown,
    Embedded,
    Finished,
    LoadFailed,
    PinReport,
    ProtocolError,
    Ready,
    Rejected,
    Step,
    ToDaemon,
    WorkingSet,
)
from server.request import CLIENT_WENT_AWAY, Request
from server.scheduler import Scheduler
from server.working_sets import WorkingSets

log = logging.getLogger("corral.core")


class ServingCore:
    """Implements server.calls.Core. To be used inside one running event loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        metrics: Metrics,
        *,
        spawn: Spawn = WorkerProcess.start,
        working_sets: WorkingSets | None = None,
        clock: Callable[[], float] = time.monotonic,
        grace: float = 20,
    ) -> None:
        """grace: seconds that running requests are given when the daemon ends. Without
        working_sets none are kept."""
        self._scheduler = scheduler
        self._metrics = metrics
        self._spawn = spawn
        self._working_sets = working_sets
        self._clock = clock
        self._grace = grace
        self._hosts: dict[str, Host] = {}
        self._requests: dict[str, Request] = {}
        self._loads: dict[str, asyncio.Future[None]] = {}
        self._load_ids = (f"load-{n}" for n in itertools.count())
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._hurried = asyncio.Event()

    # -- what routes ask -------------------------------------------------------------------

    def generate(self, call: Call) -> AsyncGenerator[CallEvent]:
        """See calls.Core. A client that reads slowly gets fewer, longer Texts."""
        return self._events(call)

    def embed(self, call: EmbedCall) -> AsyncGenerator[CallEvent]:
        """See calls.Core."""
        return self._events(call)

    async def _events(self, call: Call | EmbedCall) -> AsyncGenerator[CallEvent]:
        request = Request.of(call, self._clock(), self._metrics)
        self._requests[call.id] = request
        on_request = self._scheduler.on_embed if request.embeds else self._scheduler.on_request
        self._apply(on_request(call.id, call.spec, self._clock()))
        try:
            while True:
                event = await request.mailbox.get()
                yield event
                if isinstance(event, Ended):
                    return
        finally:
            if call.id in self._requests and request.abandoned is None:
                self._abandon(request, CLIENT_WENT_AWAY)

    async def load(self, spec: ModelSpec) -> None:
        """See calls.Core."""
        id = next(self._load_ids)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loads[id] = done
        self._apply(self._scheduler.on_load(id, spec, self._clock()))
        try:
            await done
        finally:
            if self._loads.pop(id, None) is not None:
                self._apply(self._scheduler.on_cancel(id, self._clock()))

    async def unload(self, name: str) -> None:
        """See calls.Core. Requests that wait are kept, and load the model again."""
        if host := self._hosts.get(name):
            self._apply(self._scheduler.on_unload(name, self._clock()))
            await host.exited.wait()

    def apply(self, spec: ModelSpec) -> bool:
        """See calls.Core."""
        host = self._hosts.get(spec.name)
        applied = host is not None and host.apply(spec)
        self._show()
        return applied

    def is_busy(self) -> bool:
        """A request waits or runs."""
        return bool(self._requests)

    def loaded(self) -> list[LoadedModel]:
        """Models whose worker process runs, the longest loaded first."""
        described = (
            self._hosts[worker.spec.name].describe(
                worker,
                self._scheduler.waiting(worker.spec.name),
                self._unix_time(self._scheduler.expires_at(worker.spec.name)),
            )
            for worker in self._scheduler.workers()
        )
        return [model for model in described if model is not None]

    async def close(self) -> None:
        """End in order: admit nothing, let run, cancel, stop. Returns when no process is left."""
        log.info("shutdown: %d requests are open", len(self._requests))
        self._apply(self._scheduler.on_shutdown(self._clock()))
        await self._let_run()
        if self._requests:
            log.warning("shutdown: %d requests are cancelled", len(self._requests))
        for request in list(self._requests.values()):
            error = ShuttingDown()
            request.mailbox.end(error)
            self._abandon(request, error.status)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def hurry(self) -> None:
        """Let close() wait for running requests no longer."""
        self._hurried.set()

    async def _let_run(self) -> None:
        if not self._tasks:
            return
        ends = [
            asyncio.create_task(self._hurried.wait()),
            asyncio.create_task(_all_done(self._tasks)),
        ]
        await asyncio.wait(ends, timeout=self._grace, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()

    # -- effects ---------------------------------------------------------------------------

    def _apply(self, effects: list[Effect]) -> None:
        """The one place where decisions become deeds."""
        for effect in effects:
            match effect:
                case StartWorker(spec):
                    host = self._hosts[spec.name] = Host(spec, self._clock())
                    self._run(self._host(host))
                case StopWorker(name):
                    self._run(self._hosts[name].stop())
                case KillWorker(name, why):
                    self._hosts[name].kill(why)
                case Submit(id):
                    self._submit(self._requests[id])
                case CancelRunning(id):
                    self._hosts[self._requests[id].model].send(protocol.encode(Cancel(id)))
                case Loaded(id):
                    self._end_load(id, None)
                case Fail(id, error):
                    request = self._requests[id]
                    request.mailbox.end(error)
                    request.abandoned = error.status
                case Reject(id, error) if id in self._loads:
                    self._end_load(id, error)
                case Reject(id, error):
                    self._requests.pop(id).fail(error, self._clock())
        self._show()
        self._set_timer()

    def _submit(self, request: Request) -> None:
        host = self._hosts[request.model]
        host.send(request.submit(self._clock(), host.began, host.ready_at))

    def _end_load(self, id: str, error: ServingError | None) -> None:
        done = self._loads.pop(id)
        if done.cancelled():
            # Its task was, and load() hears of it a turn of the loop later.
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def _abandon(self, request: Request, status: int) -> None:
        """The client is gone or was told its end; a worker that runs it may take its time."""
        if request.running:
            request.abandoned = status
        else:
            del self._requests[request.call.id]
            request.leave(self._clock())
        self._apply(self._scheduler.on_cancel(request.call.id, self._clock()))

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _show(self) -> None:
        self._metrics.show(self.loaded(), self._scheduler.queue_lengths())

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._scheduler.next_deadline()
        if deadline is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0, deadline - self._clock()), self._tick)

    def _tick(self) -> None:
        self._apply(self._scheduler.tick(self._clock()))

    def _unix_time(self, at: float | None) -> float | None:
        return None if at is None else time.time() + at - self._clock()

    # -- workers ---------------------------------------------------------------------------

    async def _host(self, host: Host) -> None:
        """The whole life of a model's worker. Its requests get an end even by a fault of ours."""
        name = host.spec.name
        why = f"the daemon failed to handle the worker of {name}: see its log"
        try:
            why = await host.live(
                self._spawn,
                self._working_sets.recall if self._working_sets else recall_nothing,
                self._show,
                lambda message: self._on_message(host, message),
            )
        finally:
            host.log_end(why)
            del self._hosts[name]
            # Whoever waits for it goes on after this turn of the loop.
            host.exited.set()
            self._apply(self._scheduler.on_worker_exit(name, why, self._clock()))
            self._metrics.forget(name)

    def _on_message(self, host: Host, message: ToDaemon) -> None:
        now = self._clock()
        self._scheduler.on_message(host.spec.name, now)
        match message:
            case Step():
                for piece in message.pieces:
                    self._request(piece.id).add(piece, now)
            case Embedded():
                self._request(message.id).add_vectors(message)
            case ContextGrown():
                host.grown(message.kv_bytes)
                self._show()
            case Accepted():
                self._request(message.id).accept(message.prompt_tokens)
            case Rejected():
                self._end(message.id).fail(BadRequest(message.message, param=message.param), now)
                self._apply(self._scheduler.on_finished(message.id, now))
            case Finished():
                self._end(message.id).finish(message, now)
                self._apply(self._scheduler.on_finished(message.id, now))
            case Ready():
                host.ready, host.ready_at = message, now
                log.info(
                    "model=%s ready in %.2f s, weight_residency=%s",
                    host.spec.name,
                    now - host.began,
                    host.spec.load.residency,
                )
                self._apply(self._scheduler.on_worker_ready(host.spec.name, now))
            case LoadFailed():
                host.load_error = message.message
                self._run(host.stop())
            case PinReport():
                host.pin = message
                self._show()
                log_pin(host.spec.name, message)
                if message.message:
                    self._metrics.pin_failed(host.spec.name, message.errno)
            case WorkingSet() if self._working_sets is not None:
                self._run(self._working_sets.keep(host.spec, message))

    def _request(self, id: str) -> Request:
        request = self._requests.get(id)
        if request is None:
            raise ProtocolError(f"message for the unknown request {id!r}")
        return request

    def _end(self, id: str) -> Request:
        request = self._request(id)
        del self._requests[id]
        return request


async def _all_done(tasks: set[asyncio.Task[None]]) -> None:
    """Also of those that are added while we wait."""
    while tasks:
        await asyncio.wait(tasks)
