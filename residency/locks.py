"""Which weight pages this process holds locked, and the steps that change which."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

from residency import libc
from residency.memlock import lock_limits, remedy
from residency.pin import PinJob, PinResult
from residency.procfs import PROC, ProcFS, ProcUnavailable
from residency.ranges import Range, align_outward, batches, join, subtract, total

UNLOCK_BYTES = 64 << 20
"""Unlocked in one step: 0.02 ms in large folios, some ms in pages of 4 KiB (6.18)."""


class Locks:
    """Nothing else in the process may lock memory, but for llama.cpp while it loads.

    Between the steps the caller can do other work; steps that are not taken any more leave
    what was reached, and another change may begin.
    """

    def __init__(self, weights: Sequence[Range], proc: ProcFS = PROC) -> None:
        """weights are whole mapped pages, sorted and disjoint."""
        self._weights = weights
        self._proc = proc
        self._held: list[Range] = []
        """Surely locked; after a refusal others may be in part, which unlocking them ends."""

    @property
    def held(self) -> Sequence[Range]:
        return self._held

    def change_to(self, runs: Iterable[Range]) -> Iterator[PinResult | None]:
        """Unlock all but these runs, then lock what of them is not. None for each step, and
        how it ended last: bytes_locked is the kernel's own count."""
        wanted = align_outward(runs, libc.PAGE_BYTES)
        try:
            yield from self._unlock(subtract(self._weights, wanted))
        except OSError as error:
            yield self._still_locked(wanted, error)
            return
        yield from self.extend_to(wanted)

    def extend_to(self, runs: Iterable[Range]) -> Iterator[PinResult | None]:
        """Lock what of these runs is not; they are to hold all that is. Yields as change_to."""
        job = PinJob(runs, held=self._held, read_ahead=True, proc=self._proc)
        before = self._held
        while (result := job.step()) is None:
            self._held = join([*before, *job.newly])
            yield None
        self._held = join([*before, *job.newly])
        counted = self._counted()
        yield result if counted is None else job.result(min(counted, result.bytes_asked))

    def _unlock(self, runs: Sequence[Range]) -> Iterator[None]:
        for batch in batches(runs, UNLOCK_BYTES):
            for piece in batch:
                # First: one that is refused may be unlocked in part.
                self._held = subtract(self._held, [piece])
                libc.munlock(piece.start, len(piece))
            yield None
        # llama.cpp locks from a file's first weight to its last, with what no weight is in.
        for between, after in pairwise(self._weights):
            if between.end < after.start:
                with suppress(OSError):  # not mapped, as between two files
                    libc.munlock(between.end, after.start - between.end)

    def _still_locked(self, wanted: Sequence[Range], error: OSError) -> PinResult:
        """Unlocking may split a mapping, and so reach vm.max_map_count."""
        code, counted = error.errno or 0, self._counted()
        locked = total(self._held) if counted is None else counted
        why = f"{errno.errorcode.get(code, code)}, {error.strerror}"
        return PinResult(
            bytes_asked=total(wanted),
            bytes_locked=locked,
            n_runs=len(wanted),
            seconds=0.0,
            errno=code,
            message=f"{locked} bytes are locked still, of which {total(wanted)} should be: {why}; "
            + remedy(code, lock_limits(self._proc)),
        )

    def _counted(self) -> int | None:
        """What the kernel says; None where it does not."""
        try:
            return self._proc.status("self").locked_bytes
        except ProcUnavailable:
            return None
