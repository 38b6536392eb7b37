"""What /proc tells of a worker beyond the ledger: its peak, its huge pages, its reading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.residency.figures import Cost
from residency.procfs import PROC, Pid, ProcessGone, ProcFS

# proc(5): resets VmHWM to the current size.
_RESET_PEAK = "5"
_HUGE_KEYS = ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped")


class Worker:
    """Every call raises ProcessGone if it has ended."""

    def __init__(self, pid: Pid, proc: ProcFS = PROC) -> None:
        self._pid = pid
        self._proc = proc

    def rss_bytes(self) -> int:
        return self._proc.status(self._pid).rss_bytes

    def reset_peak(self) -> None:
        with self._alive():
            self._path("clear_refs").write_text(_RESET_PEAK)

    def peak_rss_bytes(self) -> int:
        """Since the reset."""
        return self._fields("status")["VmHWM"] * 1024

    def huge_bytes(self) -> int:
        rollup = self._fields("smaps_rollup")
        return sum(rollup.get(key, 0) for key in _HUGE_KEYS) * 1024

    def cost(self) -> Cost:
        """Since it started: faults that waited for a disk, and bytes that it had a disk read.

        The kernel counts a read where it is asked for, so read-ahead and advice count too.
        """
        return Cost(self._proc.major_faults(self._pid), self._fields("io")["read_bytes"])

    def _path(self, name: str) -> Path:
        return self._proc.root / str(self._pid) / name

    def _fields(self, name: str) -> dict[str, int]:
        """The numbers of a file of lines `key: number [unit]`."""
        with self._alive():
            lines = self._path(name).read_text().splitlines()
        words = (line.partition(":") for line in lines)
        numbers = {key: rest.split() for key, _, rest in words}
        return {key: int(rest[0]) for key, rest in numbers.items() if rest and rest[0].isdecimal()}

    @contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, ProcessLookupError) as error:
            raise ProcessGone(f"process {self._pid} is gone") from error


def between(before: Cost, after: Cost) -> Cost:
    return Cost(
        after.major_faults - before.major_faults,
        after.read_bytes - before.read_bytes,
    )
