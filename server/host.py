"""A model's worker as the core sees it, from the decision to start it until it is reaped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec

from residency.policy import Policy, parse_policy
from server import protocol
from server.calls import LoadedModel, ModelSpec
from server.places import Worker
from server.process import WorkerProcess
from server.protocol import Apply, FileRuns, Load, PinReport, ProtocolError, Ready, ToDaemon

log = logging.getLogger("corral.core")

Spawn = Callable[[str], Awaitable[WorkerProcess]]
"""Starts a worker for the model of that name. Raises OSError."""
Recall = Callable[[ModelSpec], Awaitable[FileRuns]]
"""The working set that was kept of a model."""


async def recall_nothing(_: ModelSpec) -> FileRuns:
    return []


class Host:
    """began and ready_at are times of the core's clock."""

    def __init__(self, spec: ModelSpec, began: float) -> None:
        self.spec = spec
        self.began = began
        self.ready: Ready | None = None
        self.ready_at = began
        self.load_error: str | None = None
        """What the worker said of a load that failed."""
        self.pin: PinReport | None = None
        """The last that came."""
        self.exited = asyncio.Event()
        self._stopped = False
        self._process: asyncio.Future[WorkerProcess | None] = asyncio.Future()

    async def live(
        self,
        spawn: Spawn,
        recall: Recall,
        on_start: Callable[[], None],
        on_message: Callable[[ToDaemon], None],
    ) -> str:
        """Start, load, pass on every message; returns, when no process is left, the reason."""
        name = self.spec.name
        replay = await recall(self.spec)
        try:
            process = await spawn(name)
        except OSError as error:
            self._process.set_result(None)
            return f"the worker of {name} could not be started: {error}"
        log.info("model=%s pid=%d loading", name, process.pid)
        self._process.set_result(process)
        process.send(protocol.encode(msgspec.structs.replace(self.spec.load, replay=replay)))
        on_start()
        why = await process.run(on_message)
        return self.load_error or f"the worker of {name} {why}"

    async def stop(self) -> None:
        """Returns when the process has ended, whatever it was doing."""
        self._stopped = True
        process = await self._process
        if process is not None:
            await process.stop()

    def kill(self, why: str) -> None:
        """Only a worker that is ready."""
        process = self._process.result()
        assert process is not None
        process.kill(why)

    def grown(self, kv_bytes: int) -> None:
        """Its contexts take so much now. Raises ProtocolError if it has not loaded."""
        if self.ready is None:
            raise ProtocolError("a context has grown before the model was ready")
        self.ready = msgspec.structs.replace(self.ready, kv_bytes=kv_bytes)

    def log_end(self, why: str) -> None:
        """A warning unless it was stopped, and not because its load had failed."""
        asked = self._stopped and self.load_error is None
        level = logging.INFO if asked else logging.WARNING
        log.log(level, "model=%s ended: %s", self.spec.name, why)

    def send(self, frame: bytes) -> None:
        """Only to a worker that has been started; one that loads reads it when it is ready."""
        process = self._process.result()
        assert process is not None
        process.send(frame)

    def apply(self, spec: ModelSpec) -> bool:
        """See calls.Core."""
        before, after = _policy(self.spec.load), _policy(spec.load)
        unmapped = self.ready is not None and self.ready.weights.file == 0
        other = spec.identity != self.spec.identity
        if self._stopped or other or unmapped or not before.live_to(after):
            return False
        if after == before:
            return True
        change = Apply(spec.load.residency, spec.load.pin, spec.load.repin_requests)
        load = msgspec.structs.replace(self.spec.load, **msgspec.structs.asdict(change))
        self.spec = replace(self.spec, load=load)
        # Without a process yet, its Load will say so.
        if self._process.done():
            self.send(protocol.encode(change))
        log.info(
            "model=%s changes to weight_residency=%s pin=%s repin_requests=%d",
            spec.name,
            change.residency,
            ",".join(change.pin) or "-",
            change.repin_requests,
        )
        return True

    def describe(
        self, worker: Worker, waiting: int, expires_at: float | None
    ) -> LoadedModel | None:
        """What routes and metrics are told; None as long as there is no process."""
        process = self._process.result() if self._process.done() else None
        if process is None:
            return None
        spec = replace(self.spec, keep_alive=worker.keep_alive)
        return LoadedModel(
            spec, process.pid, self.ready, len(worker.running), waiting, expires_at, self.pin
        )


def _policy(load: Load) -> Policy:
    return parse_policy(load.residency, load.pin, load.repin_requests)


def log_pin(model: str, report: PinReport) -> None:
    """A failure is a warning with what to do about it; the model serves all the same."""
    if not report.bytes_asked:
        log.info("model=%s has nothing locked", model)
        return
    log.log(
        logging.WARNING if report.message else logging.INFO,
        "model=%s pinned %d of %d bytes in %d runs in %.2f s%s",
        model,
        report.bytes_locked,
        report.bytes_asked,
        report.n_runs,
        report.seconds,
        f": {report.message}" if report.message else "",
    )
