"""The requests that wait in the daemon, oldest first, for each model and over all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from server.calls import ModelSpec

Kind = Literal["generate", "embed", "load"]


@dataclass(frozen=True)
class Waiting:
    """A request, or a load that somebody asked for."""

    id: str
    spec: ModelSpec
    order: int
    """Rank of arrival."""
    kind: Kind
    """What it wants of the worker; load is no more than that the model be loaded."""


class WaitingRoom:
    """Every change and every question costs as much as it touches."""

    def __init__(self) -> None:
        self._all: dict[str, Waiting] = {}
        self._queues: dict[str, dict[str, Waiting]] = {}

    def add(self, waiting: Waiting) -> None:
        self._all[waiting.id] = waiting
        self._queues.setdefault(waiting.spec.name, {})[waiting.id] = waiting

    def remove(self, id: str) -> None:
        """An id that does not wait is ignored."""
        waiting = self._all.pop(id, None)
        if waiting is None:
            return
        queue = self._queues[waiting.spec.name]
        del queue[id]
        if not queue:
            del self._queues[waiting.spec.name]

    def of(self, model: str) -> list[Waiting]:
        return list(self._queues.get(model, {}).values())

    def head(self, model: str) -> Waiting | None:
        return next(iter(self._queues.get(model, {}).values()), None)

    def models(self) -> list[str]:
        """The models that somebody waits for, in the order of who waits longest."""
        return sorted(self._queues, key=lambda name: next(iter(self._queues[name].values())).order)

    def lengths(self) -> dict[str, int]:
        """How many wait for each model that somebody waits for."""
        return {name: len(queue) for name, queue in self._queues.items()}

    def length(self, model: str) -> int:
        return len(self._queues.get(model, ()))

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._all.values())

    def __contains__(self, id: str) -> bool:
        return id in self._all
