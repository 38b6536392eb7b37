"""What the routes work with, put together once at start."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request

from manifests.store import Store
from residency.class_map import Cell
from residency.ledger import Ledger
from server.calls import Core
from server.catalog import Catalog
from server.settings import Settings
from server.templates import Templates

# More would only share the disk; the next ones wait.
MAX_LONG_WORK = 2


class Measures(Protocol):
    """What the routes ask of server/metrics.py. All block on /proc: call them in threads."""

    def render(self) -> bytes: ...

    def ledger(self, name: str) -> Ledger:
        """Raises ModelNotFound if the model is not loaded, or another ServingError."""
        ...

    def class_map(self, name: str) -> list[Cell]:
        """Raises as ledger."""
        ...


@dataclass
class Services:
    settings: Settings
    store: Store
    catalog: Catalog
    core: Core
    templates: Templates
    measures: Measures
    long_work: Executor = field(
        default_factory=lambda: ThreadPoolExecutor(MAX_LONG_WORK, "corral-store")
    )
    """For pulls and creates, which copy and hash for minutes: apart from the threads that
    answer requests."""
    scrapes: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "corral-metrics"))
    """For /metrics, which must not wait behind an edit that waits for a lock or a disk."""
    live_edits: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from reading a manifest until what it says is applied to the loaded model: the last
    edit that was stored is the last that is applied."""
    stopping: bool = False
    """Set when the daemon was told to end; /ready says so."""


def services_of(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services
