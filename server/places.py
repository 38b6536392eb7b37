"""What the scheduler knows of one model that has a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from server.calls import ModelSpec
from server.protocol import MAX_EMBEDS
from server.waiting_room import Kind, Waiting

Phase = Literal["loading", "ready", "stopping"]


@dataclass
class Worker:
    """The place of one model. Others read it and change nothing."""

    spec: ModelSpec
    keep_alive: float
    last_used: float
    phase: Phase = "loading"
    running: set[str] = field(default_factory=set)
    embedding: set[str] = field(default_factory=set)
    """Those of the running that are for embeddings, and so in no slot."""
    cancelled: set[str] = field(default_factory=set)
    """Those of the running that nobody waits for any more."""
    heard: float = 0
    """When it last sent a message, or began to run requests."""
    closing: bool = False
    """An unload was asked for."""
    yields_from: int | None = None
    """Requests of this rank and later are not served: the place is wanted by another model."""

    @property
    def busy(self) -> bool:
        return len(self.running) > len(self.cancelled)

    def has_room(self, kind: Kind) -> bool:
        if kind == "generate":
            return len(self.running) - len(self.embedding) < self.spec.load.n_slots
        return kind == "load" or len(self.embedding) < MAX_EMBEDS

    def start(self, waiting: Waiting) -> None:
        self.running.add(waiting.id)
        if waiting.kind == "embed":
            self.embedding.add(waiting.id)

    def end(self, id: str) -> None:
        self.running.remove(id)
        self.embedding.discard(id)
        self.cancelled.discard(id)

    def serves(self, waiting: Waiting) -> bool:
        """Whether it may ever serve this request."""
        return (
            self.phase != "stopping"
            and not self.closing
            and waiting.spec.identity == self.spec.identity
            and (self.yields_from is None or waiting.order < self.yields_from)
        )
