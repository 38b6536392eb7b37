"""A memory cgroup of v1, for real, below the one that the tests run in."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from residency.cgroups import groups

_PATIENCE_SECONDS = 30


def _own_group() -> Path | None:
    """The v1 memory cgroup of this process, if it may have children."""
    found = (group for group in groups("memory") if (group / "memory.limit_in_bytes").exists())
    group = next(found, None)
    return group if group is not None and os.access(group, os.W_OK) else None


needs_memory_cgroup = pytest.mark.skipif(
    _own_group() is None, reason="needs root and a v1 memory cgroup"
)


class MemoryGroup:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def prefix(self) -> list[str]:
        """A command that runs what follows it in the group, from its first page on."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    def number(self, name: str) -> int:
        return int((self.path / f"memory.{name}").read_text())

    def stat(self, name: str) -> int:
        lines = (self.path / "memory.stat").read_text().splitlines()
        return next(int(value) for key, value in map(str.split, lines) if key == name)

    def reset_peak(self) -> None:
        (self.path / "memory.max_usage_in_bytes").write_text("0")


@contextmanager
def memory_group(name: str, limit: int | None = None) -> Iterator[MemoryGroup]:
    """The group, empty of processes at the end, or the test fails."""
    own = _own_group()
    assert own is not None
    path = own / f"corral-test-{os.getpid()}-{name}"
    path.mkdir()
    try:
        if limit is not None:
            (path / "memory.limit_in_bytes").write_text(str(limit))
        yield MemoryGroup(path)
    finally:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                path.rmdir()
                break
            time.sleep(0.05)
        else:
            path.rmdir()
