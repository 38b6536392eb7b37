"""How much more memory this process may use before something has to give way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from residency.cgroups import groups, text

HOST = "host"


@dataclass(frozen=True, order=True)
class Headroom:
    """Bytes that can still be allocated, and what sets that bound."""

    bytes: int
    binds: str
    """HOST, or the folder of the cgroup."""

    @property
    def bound(self) -> str:
        """What binds, in words."""
        return "the host's memory" if self.binds == HOST else f"the memory limit of {self.binds}"


def headroom(root: Path = Path("/")) -> Headroom | None:
    """The least over the host and every memory cgroup that this process is in, v1 and v2.

    On the host that is MemAvailable; in a cgroup its limit less what is used and cannot be
    reclaimed. None if nothing of that can be read. It is what holds now: others allocate too.
    """
    return min(_levels(root), default=None)


def _levels(root: Path) -> Iterator[Headroom]:
    available = _field(root / "proc/meminfo", "MemAvailable:")
    if available is not None:
        yield Headroom(available * 1024, HOST)
    for group in groups("memory", root):
        left = _left_v2(group)
        if left is None:
            left = _left_v1(group)
        if left is not None:
            yield Headroom(max(0, left), f"/{group.relative_to(root)}")


def _left_v2(group: Path) -> int | None:
    """Below memory.max, and below memory.high, above which the kernel slows the group down
    to a crawl. None without both."""
    limits = [_number(group / name) for name in ("memory.max", "memory.high")]
    used = _number(group / "memory.current")
    set_limits = [limit for limit in limits if limit is not None]
    if not set_limits or used is None:
        return None
    return min(set_limits) - used + _reclaimable(group, "")


def _left_v1(group: Path) -> int | None:
    """Without a limit its number is near 2^63, so that it never binds."""
    limit = _number(group / "memory.limit_in_bytes")
    used = _number(group / "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    return limit - used + _reclaimable(group, "total_")


def _reclaimable(group: Path, prefix: str) -> int:
    """File pages on the two lists that reclaim looks at, of the group and those below it.

    Locked pages are on neither list, but on that of the unevictable ones (measured on 6.18:
    after mlock of a cached file they have left active_file and inactive_file).
    """
    names = (f"{prefix}inactive_file", f"{prefix}active_file")
    return sum(_field(group / "memory.stat", name) or 0 for name in names)


def _number(path: Path) -> int | None:
    """None also for v2's `max`."""
    value = text(path)
    return int(value) if value.isdecimal() else None


def _field(path: Path, name: str) -> int | None:
    """Of lines such as `name 12` or `name 12 kB`."""
    for line in text(path).splitlines():
        key, *values = line.split()
        if key == name and values and values[0].isdecimal():
            return int(values[0])
    return None
