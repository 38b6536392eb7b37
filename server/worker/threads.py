"""How many compute threads to use: no more than the CPUs that this process may keep busy."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from residency.cgroups import groups, text

logger = logging.getLogger("worker.threads")

# More than a CPU's worth may help where threads wait for disk. Far more never answer: at each
# barrier of a token every thread spins for its turn.
_MOST_PER_CPU = 4


def default_threads(root: Path = Path("/")) -> int:
    """CPUs of the affinity mask, cut down to the cgroup's CPU quota."""
    return threads_within(len(os.sched_getaffinity(0)), cpu_quota(root))


def threads_within(cpus: int, quota: float | None) -> int:
    # Rounded down: a thread beyond the quota gets all of them throttled at the next barrier.
    return cpus if quota is None else max(1, min(cpus, int(quota)))


def bounded_threads(asked: int, usable: int) -> int:
    """What to use of a number that someone set; usable CPUs, as default_threads counts them."""
    most = _MOST_PER_CPU * usable
    if asked > most:
        logger.warning("n_threads %d is cut down to %d: %d CPUs may be used", asked, most, usable)
    return min(asked, most)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The tightest CPU quota of this process's cgroup and its parents, in CPUs; None: no limit."""
    quotas = [quota for group in groups("cpu", root) if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def _quota(group: Path) -> float | None:
    limit, _, period = text(group / "cpu.max").partition(" ")
    if not limit:
        limit = text(group / "cpu.cfs_quota_us")
        period = text(group / "cpu.cfs_period_us")
    if not limit or not period or limit == "max" or int(limit) <= 0:
        return None
    return int(limit) / int(period)
