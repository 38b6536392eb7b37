"""The remedy names what binds, with its number."""

import errno
from pathlib import Path

import pytest

from residency.memlock import LockLimits, lock_limits, remedy
from residency.procfs import ProcFS


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOMEM, errno.EAGAIN])
def test_a_memlock_limit_is_told_with_both_ways_around_it(code: int) -> None:
    text = remedy(code, LockLimits(memlock_bytes=8388608, n_mappings=100, max_mappings=65530))
    for part in ("8388608", "CAP_IPC_LOCK", "--cap-add IPC_LOCK", "`ulimits: memlock: -1`"):
        assert part in text
    assert "max_map_count" not in text


def test_too_many_mappings_are_told_with_their_number() -> None:
    text = remedy(errno.ENOMEM, LockLimits(8388608, n_mappings=65529, max_mappings=65530))
    assert "65529" in text
    assert "vm.max_map_count=65530" in text
    assert "RLIMIT_MEMLOCK" not in text


def test_without_a_limit_it_is_memory_or_the_file() -> None:
    text = remedy(errno.EAGAIN, LockLimits(None, n_mappings=100, max_mappings=65530))
    assert "RLIMIT_MEMLOCK does not bind" in text
    assert "cgroup" in text


def test_without_proc_the_limit_is_still_suspected(tmp_path: Path) -> None:
    limits = lock_limits(ProcFS(tmp_path / "nowhere"))
    assert "ulimit -l" in remedy(errno.ENOMEM, limits)
