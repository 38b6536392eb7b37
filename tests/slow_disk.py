"""A disk slowed for one process: a v1 blkio cgroup, for real, below the one the tests run in."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup/blkio")
_LIMIT = "blkio.throttle.read_bps_device"
_PATIENCE_SECONDS = 30


def _own_group() -> Path | None:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    paths = (line.split(":", 2) for line in lines)
    own = (_ROOT / path.lstrip("/") for _, kinds, path in paths if "blkio" in kinds.split(","))
    return next((group for group in own if os.access(group, os.W_OK)), None)


needs_slow_disk = pytest.mark.skipif(
    _own_group() is None, reason="needs root and a v1 blkio cgroup to slow the disk"
)


def _device(path: Path) -> str:
    """Of the whole disk that holds the file; throttling does not take partitions."""
    device = path.stat().st_dev
    entry = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if not (entry / "dev").exists():
        pytest.skip(f"{path} lies on no disk")
    whole = entry.parent if (entry / "partition").exists() else entry
    return (whole / "dev").read_text().strip()


@contextmanager
def slow_disk(path: Path, bytes_per_second: int) -> Iterator[list[str]]:
    """A command prefix under which the disk of this file reads no faster."""
    own = _own_group()
    assert own is not None
    device = _device(path)
    group = own / f"corral-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / _LIMIT).write_text(f"{device} {bytes_per_second}")
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)
        else:
            group.rmdir()
