"""What the scheduler tells the core to do."""

from __future__ import annotations

from dataclasses import dataclass

from server.calls import ModelSpec
from server.errors import ServingError


@dataclass(frozen=True)
class StartWorker:
    """Start a worker and load; answered by on_worker_ready or on_worker_exit."""

    spec: ModelSpec


@dataclass(frozen=True)
class StopWorker:
    """Stop the worker, whatever it does; answered by on_worker_exit."""

    name: str


@dataclass(frozen=True)
class Submit:
    """Hand the request to its model's worker; answered by on_finished."""

    id: str


@dataclass(frozen=True)
class Loaded:
    """The load of this id is done: its model serves. Its only end."""

    id: str


@dataclass(frozen=True)
class CancelRunning:
    """Tell the worker to end the request; answered by on_finished."""

    id: str


@dataclass(frozen=True)
class Fail:
    """The running request's client gets this error now; its worker has not ended it yet, and
    on_finished or on_worker_exit follows."""

    id: str
    error: ServingError


@dataclass(frozen=True)
class KillWorker:
    """End the worker's process without asking it; answered by on_worker_exit."""

    name: str
    why: str


@dataclass(frozen=True)
class Reject:
    """The request or load ends with this error. Its only end."""

    id: str
    error: ServingError


Effect = StartWorker | StopWorker | KillWorker | Submit | Loaded | CancelRunning | Fail | Reject
