"""Lock weights in RAM: which pages, in what steps, and what came of it.

A refused lock is a result and no exception: the model serves without it.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from residency import libc
from residency.advice import advise
from residency.headroom import Headroom, headroom
from residency.memlock import lock_limits, remedy
from residency.modes import Advice
from residency.procfs import PROC, ProcFS, ProcUnavailable
from residency.ranges import (
    Range,
    align_outward,
    batches,
    bound_runs,
    intersect,
    join,
    subtract,
    total,
)

MAX_GAP_BYTES = 16 << 10
"""Untouched bytes that are locked too, rather than end a run."""
MAX_RUNS = 512
"""Each run splits a mapping into up to three. vm.max_map_count is 65,530 by default; and
smaps, which every sample of the ledger reads, takes 30 us a mapping."""
SLICE_BYTES = 8 << 20
"""Locked in one step: 0.7 ms for cached pages of 4 KiB (6.18), 80 ms from a disk of 100 MB/s."""
SCAN_BYTES = 128 << 20
"""Searched for touched pages in one step: 0.4 to 3 ms, 20 ms if every other page is (6.18)."""
SPARE_BYTES = 64 << 20
"""Left to the process when weights are locked: compute buffers and heap that it has yet to
touch. mlock is never refused for lack of memory; the kernel kills for it instead (6.18)."""


@dataclass(frozen=True)
class PinResult:
    """How far a pin came. seconds is the time spent in its steps."""

    bytes_asked: int
    bytes_locked: int
    n_runs: int
    seconds: float
    errno: int
    """Of the call that was refused; 0 if none was."""
    message: str
    """Empty if all is locked, else what is not, why, and the remedy."""


def touched_ranges(ranges: Iterable[Range], proc: ProcFS = PROC) -> list[Range]:
    """The pages of these address ranges that this process has touched, with the neighbours
    that the kernel mapped on the way (see ProcFS.pagemap_present). What others have read
    into the page cache does not count. Raises ProcUnavailable."""
    return proc.pagemap_present("self", ranges)


def pin_plan(
    touched: Iterable[Range],
    weights: Iterable[Range],
    max_gap: int = MAX_GAP_BYTES,
    max_runs: int = MAX_RUNS,
) -> list[Range]:
    """The runs to lock so that all touched pages are.

    At most max_runs, and one more for each hole between the weights' pages that
    a run would have bridged: what lies there is not ours to lock, or not mapped.
    """
    runs = bound_runs(join(touched, max_gap), max_runs)
    return intersect(runs, align_outward(weights, libc.PAGE_BYTES))


class PinJob:
    """A pin carried out in slices, between which the caller can do other work."""

    def __init__(
        self,
        runs: Iterable[Range],
        slice_bytes: int = SLICE_BYTES,
        *,
        held: Sequence[Range] = (),
        read_ahead: bool = False,
        proc: ProcFS = PROC,
        room: Callable[[], Headroom | None] = headroom,
    ) -> None:
        """held are pages that are locked already: they are asked for and need no work.
        read_ahead asks for each slice with WILLNEED a step before it is locked, the
        first at once. Without room for all, nothing is locked."""
        pages = align_outward(runs, libc.PAGE_BYTES)
        self._asked, self._n_runs = total(pages), len(pages)
        self._todo = deque(batches(subtract(pages, held), slice_bytes))
        self._read_ahead = read_ahead
        self._proc = proc
        self._locked = total(intersect(pages, held))
        self.newly: list[Range] = []
        """What its steps have locked so far."""
        self._seconds = 0.0
        self._errno = 0
        self._refusal = ""
        self._refuse_without_room(room())
        self._ask_ahead()

    def _refuse_without_room(self, room: Headroom | None) -> None:
        missing = self._asked - _locked_already(self._proc)
        if not self._todo or room is None or missing + SPARE_BYTES <= room.bytes:
            return
        self._todo.clear()
        self._errno = errno.ENOMEM
        self._refusal = (
            f"{missing} bytes more would leave less than {SPARE_BYTES} of the {room.bytes} that "
            f"are available: {room.bound} binds; free memory or raise the limit"
        )

    def step(self) -> PinResult | None:
        """Lock one slice, of one run or of many short ones. The result once all is locked
        or a slice was refused, and from then on the same again; None before."""
        if self._todo:
            began = time.perf_counter()
            self._lock(self._todo.popleft())
            self._ask_ahead()
            self._seconds += time.perf_counter() - began
        return None if self._todo else self.result(self._locked)

    def _lock(self, batch: Iterable[Range]) -> None:
        try:
            for piece in batch:
                libc.mlock(piece.start, len(piece))
                self._locked += len(piece)
                self.newly.append(piece)
        except OSError as error:
            self._todo.clear()
            self._errno = error.errno or 0
            self._refusal = (
                f"{errno.errorcode.get(self._errno, self._errno)}, {error.strerror}; "
                f"{remedy(self._errno, lock_limits(self._proc))}"
            )

    def _ask_ahead(self) -> None:
        if self._read_ahead and self._todo:
            advise(self._todo[0], Advice.WILLNEED)

    def result(self, bytes_locked: int) -> PinResult:
        """The result of a finished job, if this many of the bytes asked are locked."""
        refusal = self._refusal
        if bytes_locked < self._asked and not refusal:
            refusal = "mlock succeeded without effect, as on DAX and hugetlbfs"
        return PinResult(
            bytes_asked=self._asked,
            bytes_locked=bytes_locked,
            n_runs=self._n_runs,
            seconds=self._seconds,
            errno=self._errno,
            message=refusal and f"locked {bytes_locked} of {self._asked} bytes: {refusal}",
        )


def _locked_already(proc: ProcFS) -> int:
    """0 if that is unknown: then too much room is asked for and not too little."""
    try:
        return proc.status("self").locked_bytes
    except ProcUnavailable:
        return 0


def working_set(
    weights: Sequence[Range],
    scan_bytes: int = SCAN_BYTES,
    proc: ProcFS = PROC,
    max_runs: int = MAX_RUNS,
) -> Iterator[list[Range] | None]:
    """What this process has touched of its weights, as runs to lock or to keep, searched for in
    steps: None for each, and the runs last. Raises ProcUnavailable."""
    touched: list[Range] = []
    for batch in batches(weights, scan_bytes):
        touched += touched_ranges(batch, proc)
        yield None
    yield pin_plan(touched, weights, max_runs=max_runs)
