"""How much of this process's anonymous memory lies in huge pages, and why not all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from residency.cgroups import text
from residency.procfs import PROC, ProcFS
from residency.ranges import Range

_USUAL_BYTES = 2 << 20
"""A huge page's on x86-64, and on arm64 with pages of 4 KiB."""
_ENOUGH = 0.9
"""Of what can be huge. A few that memory had no room for make no difference to notice."""


@dataclass(frozen=True)
class Coverage:
    """Bytes of some anonymous memory."""

    huge: int
    possible: int
    """In whole, aligned huge pages: the rest is at the ends of runs."""

    @property
    def is_short(self) -> bool:
        return self.huge < _ENOUGH * self.possible


def coverage(runs: Sequence[Range], proc: ProcFS = PROC, root: Path = Path("/")) -> Coverage:
    """Of these address ranges, sorted and disjoint. Raises ProcUnavailable."""
    unit = _page_bytes(root)
    whole = (run.end // unit * unit - -(-run.start // unit) * unit for run in runs)
    huge = sum(mapping.huge_bytes for mapping in proc.smaps("self", (), runs))
    return Coverage(huge, sum(max(0, bytes) for bytes in whole))


def obstacle(proc: ProcFS = PROC, root: Path = Path("/")) -> str:
    """What keeps huge pages away from memory that asks for them, and the remedy. Raises
    ProcUnavailable."""
    enabled = _folder(root) / "enabled"
    setting = text(enabled)
    if not setting:
        return "this kernel has no transparent huge pages"
    if "[never]" in setting:
        return f"{enabled} is never: set it to madvise"
    if proc.status("self").huge_pages_off:
        return "this process may have none (PR_SET_THP_DISABLE, set by what started it)"
    return "free memory is too fragmented: load earlier, or write 1 to /proc/sys/vm/compact_memory"


def _page_bytes(root: Path) -> int:
    told = text(_folder(root) / "hpage_pmd_size")
    return int(told) if told.isdecimal() and int(told) else _USUAL_BYTES


def _folder(root: Path) -> Path:
    return root / "sys/kernel/mm/transparent_hugepage"
