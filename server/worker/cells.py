"""The slots: which sequences run in them, and whose KV cells the idle ones still hold."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import Protocol

import numpy as np

from server.worker.prefix import Held, Placement, comes_soon, place
from server.worker.slots import Sequence


class Start(Enum):
    """What became of a sequence that was to start."""

    STARTED = auto()
    NO_ROOM = auto()
    """What runs may need all cells. Nothing changes that before one of them ends."""
    SHARES_SOON = auto()
    """One that runs is computing cells that this one can take in a few steps."""


class CellStore(Protocol):
    """The cells as llama.cpp keeps them; see backend.Backend."""

    n_ctx: int
    n_slots: int
    whole_states: bool

    def reaches(self, slot: int, n: int) -> bool: ...
    def keep(self, slot: int, n: int) -> None: ...
    def share(self, source: int, slot: int, n: int) -> None: ...
    def forget(self, slot: int) -> None: ...


class Cells:
    """What it believes of a slot's cells is what they hold, between any two calls."""

    def __init__(self, store: CellStore) -> None:
        self._store = store
        self._running: dict[int, Sequence] = {}
        self._idle = {slot: _empty(slot) for slot in range(store.n_slots)}
        """Least recently used first."""

    @property
    def running(self) -> Collection[Sequence]:
        """In the order in which they started."""
        return self._running.values()

    def held(self) -> list[Held]:
        """Running ones first, then the idle ones, least recently used first. Views."""
        running = [Held(slot, s.in_cells, True) for slot, s in self._running.items()]
        return [*running, *self._idle.values()]

    def try_start(self, sequence: Sequence) -> Start:
        """Puts it into a slot, which has to be there, with as many of its cells as some slot
        holds. Alone it always starts."""
        placement = place(
            sequence.known,
            self.held(),
            whole_states=self._store.whole_states,
            reaches=self._store.reaches,
        )
        if self._running:
            if not self._has_room(sequence, placement):
                return Start.NO_ROOM
            if self._shares_soon(sequence, placement.n_keep):
                return Start.SHARES_SOON
        self._start(sequence, placement)
        return Start.STARTED

    def stop(self, sequence: Sequence, *, keep: bool) -> None:
        """It runs no more; its cells stay, or are freed."""
        slot = sequence.slot
        del self._running[slot]
        if keep:
            self._idle[slot] = Held(slot, sequence.in_cells.copy(), False, sequence.n_prompt)
        else:
            self._forget(slot)

    def forget_oldest(self) -> bool:
        """Frees the cells of the idle slot least recently used. False: all idle ones are empty."""
        for slot, held in self._idle.items():
            if len(held.tokens):
                self._forget(slot)
                return True
        return False

    def _has_room(self, sequence: Sequence, placement: Placement) -> bool:
        used = sum(one.n_known - one.n_shared for one in self._running.values())
        shared = placement.n_keep if placement.source != placement.slot else 0
        # Some to grow, or it would be preempted soon and have to be read again.
        spare = min(sequence.max_new - sequence.generated, self._store.n_ctx // 8)
        return used + sequence.n_known - shared + spare <= self._store.n_ctx

    def _shares_soon(self, sequence: Sequence, n_keep: int) -> bool:
        if self._store.whole_states:
            return False
        reading = [one.known for one in self._running.values() if one.behind > 1]
        return comes_soon(sequence.known, n_keep, reading)

    def _start(self, sequence: Sequence, placement: Placement) -> None:
        slot, source, n_keep = placement.slot, placement.source, placement.n_keep
        if source != slot:
            self._store.forget(slot)
            self._store.share(source, slot, n_keep)
        elif n_keep < len(self._idle[slot].tokens):
            self._store.keep(slot, n_keep)
        if source in self._idle:
            self._idle[source] = self._idle.pop(source)
        del self._idle[slot]
        self._running[slot] = sequence
        sequence.slot = slot
        sequence.n_past = n_keep
        sequence.n_shared = n_keep if source != slot else 0

    def _forget(self, slot: int) -> None:
        self._store.forget(slot)
        self._idle[slot] = _empty(slot)


def _empty(slot: int) -> Held:
    return Held(slot, np.empty(0, dtype=np.int32), False)
