"""What this worker reads of its model's files ahead of the computing."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from residency.headroom import headroom
from residency.libc import PAGE_BYTES
from residency.modes import LoadPlan
from residency.pin import MAX_GAP_BYTES
from residency.ranges import Range, total
from residency.read_order import FilePart, FileTensor, reading_order, sparse_names
from residency.reader import Reader, open_reader
from residency.working_set import replay_order, runs_within
from server.protocol import FileRuns
from server.worker import llama
from server.worker.gguf_header import file_tensors

logger = logging.getLogger("worker.reading")

# A header with 262,144 tokens has 6 MB.
_MAX_HEADER_BYTES = 16 << 20
# A stream may go on for minutes, and what the next one wants is not read meanwhile.
_GIVES_WAY_SECONDS = 10.0
# Of the files' bytes: a working set with so much is of a model that leaves nothing out.
_MOST = 0.95


class Reading:
    """All weights in the modes that prefetch, in the others those that every pass touches whole,
    and behind them once the working set that was kept.

    The order is in the files' headers. What is known to be wanted is read while they are parsed:
    behind them, in the order of the files.

    Each call returns at once: headers are parsed and readers started and ended on a thread of
    its own, beside the load. The reading is done by the native thread.
    """

    def __init__(self, paths: Sequence[Path], kept: FileRuns) -> None:
        self._paths = paths
        self._kept = kept
        self._thread = ThreadPoolExecutor(1, "reading")
        self._tensors: list[FileTensor] | None = None
        self._opened = ExitStack()
        self._plan: LoadPlan | None = None
        self._reader: Reader | None = None
        self._replayed: Sequence[Sequence[Range]] = ()
        self._gives_way = False
        # Of the calling thread.
        self._had_request = False
        self._gives_way_until: float | None = None

    def follow(self, plan: LoadPlan) -> None:
        """Reads what a load of this plan wants, once. A copy is a reading of its own.

        What the plan leaves out is read as experts are chosen, which computing tells: not to be
        called while it does. Raises LibraryMismatch."""
        llama.read_chosen_experts(whole=plan.leaves_out)
        self._submit(lambda: self._follow(plan))

    def replay(self) -> None:
        """Reads what was kept too, in the modes that leave weights out."""
        self._submit(self._replay)

    def on_wake(self) -> None:
        """A request comes to an idle model: reads what has left the cache since, but for what was
        replayed. If memory had no room for it and no request wants it, it would come and go with
        every request. The first request has the disk to itself until it ends, or for a while."""
        if self._had_request:
            self._submit(self._again)
            return
        self._had_request = True
        self._gives_way_until = time.monotonic() + _GIVES_WAY_SECONDS
        self._submit(self._give_way)

    def on_change(self, *, idle: bool) -> None:
        """To be called after whatever may end the last request; idle if no request is left."""
        until = self._gives_way_until
        if until is not None and (idle or time.monotonic() > until):
            self._gives_way_until = None
            self._submit(self._go_on)

    def close(self) -> None:
        """Returns when nothing reads any more."""
        self._submit(self._end)
        self._thread.shutdown()

    def _submit(self, work: Callable[[], None]) -> None:
        self._thread.submit(work).add_done_callback(_tell_fault)

    def _follow(self, plan: LoadPlan) -> None:
        if plan != self._plan:
            self._plan = plan
            self._begin(plan)

    def _begin(self, plan: LoadPlan) -> None:
        self._end()
        if plan.copy:
            return
        if self._tensors is None:
            with suppress(OSError):
                self._read_unordered(plan)
            files = enumerate(self._paths)
            self._tensors = [t for file, path in files for t in file_tensors(path, file)]
            self._end()
        tensors = self._tensors
        skipped = frozenset() if plan.prefetch else sparse_names({t.name for t in tensors})
        parts = reading_order((t for t in tensors if t.name not in skipped), max_gap=PAGE_BYTES)
        if skipped and not self._gives_way:
            parts += replay_order(self._replayed, parts, MAX_GAP_BYTES)
        self._read(parts, huge=not skipped)

    def _read_unordered(self, plan: LoadPlan) -> None:
        """From the first byte on, as the headers are waited for: before the kernel reads ahead of
        them, which leaves small pages (8 MiB of them on some disks). Raises OSError."""
        sizes = self._sizes()
        wanted = [[Range(0, size)] for size in sizes] if plan.prefetch else self._kept_runs()
        parts = replay_order([_with_header(runs) for runs in wanted], (), MAX_GAP_BYTES)
        if parts:
            read = total(part.bytes for part in parts)
            self._read(parts, huge=read >= _MOST * sum(sizes))

    def _sizes(self) -> list[int]:
        return [path.stat().st_size for path in self._paths]

    def _kept_runs(self) -> list[list[Range]]:
        """Raises OSError."""
        return runs_within(self._kept, self._sizes())

    def _read(self, parts: Sequence[FilePart], *, huge: bool) -> None:
        try:
            self._reader = self._opened.enter_context(
                open_reader(llama.READER_LIBRARY, self._paths, parts, huge=huge)
            )
        except OSError as error:
            logger.warning("nothing is read ahead: %s; pages come as they are touched", error)

    def _replay(self) -> None:
        if not self._kept or self._plan is None or not self._plan.leaves_out:
            return
        try:
            self._replayed = self._kept_runs()
        except OSError as error:
            logger.warning("the working set is not replayed: %s", error)
            return
        self._begin(self._plan)

    def _give_way(self) -> None:
        if self._plan is not None and self._replayed and not self._has_passed():
            self._gives_way = True
            self._begin(self._plan)
        else:
            self._again()

    def _go_on(self) -> None:
        if self._plan is not None and self._gives_way:
            self._gives_way = False
            self._begin(self._plan)

    def _again(self) -> None:
        if self._reader is None or self._plan is None or self._gives_way:
            return
        if not self._replayed:
            self._reread(self._reader)
        elif self._has_passed():
            self._replayed = ()
            self._begin(self._plan)
        # Else the one pass over all is still under way.

    def _has_passed(self) -> bool:
        return self._reader is not None and self._reader.progress().passes > 0

    def _reread(self, reader: Reader) -> None:
        """Not what cannot stay: reading would push out what has just been read."""
        room = headroom()
        if room is None or reader.n_bytes <= room.bytes:
            reader.again()

    def _end(self) -> None:
        if self._reader:
            _tell_failure(self._reader)
        self._reader = None
        self._opened.close()


@contextmanager
def reading(paths: Sequence[Path], kept: FileRuns) -> Iterator[Reading]:
    """A Reading that ends with the block. kept are the runs of a working set."""
    made = Reading(paths, kept)
    try:
        yield made
    finally:
        made.close()


def _with_header(runs: Sequence[Range]) -> list[Range]:
    """And what lies before the first run, which is the header unless it is too much."""
    if not runs or runs[0].start > _MAX_HEADER_BYTES:
        return list(runs)
    return [Range(0, runs[0].end), *runs[1:]]


def _tell_fault(done: Future[None]) -> None:
    if error := done.exception():
        logger.error("reading ahead failed", exc_info=error)


def _tell_failure(reader: Reader) -> None:
    told = reader.progress()
    if told.errno:
        logger.warning(
            "reading ahead ended after %d of %d bytes: %s; pages come as they are touched",
            told.bytes_read,
            reader.n_bytes,
            os.strerror(told.errno),
        )
