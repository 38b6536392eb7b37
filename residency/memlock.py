"""Why mlock was refused, and what the operator can do about it."""

from __future__ import annotations

import errno
import resource
from dataclasses import dataclass

from residency.procfs import ProcFS, ProcUnavailable


@dataclass(frozen=True)
class LockLimits:
    """What bounds this process's locked memory."""

    memlock_bytes: int | None
    """RLIMIT_MEMLOCK; None is unlimited, or CAP_IPC_LOCK makes it void."""
    n_mappings: int
    max_mappings: int


def lock_limits(proc: ProcFS) -> LockLimits | None:
    """This process's limits now; None where there is no /proc."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        free = soft == resource.RLIM_INFINITY or proc.status("self").may_lock_freely
        n_mappings, max_mappings = proc.n_mappings("self"), proc.max_mappings()
    except ProcUnavailable:
        return None
    return LockLimits(None if free else soft, n_mappings, max_mappings)


def remedy(code: int, limits: LockLimits | None) -> str:
    """What to do about an errno of mlock under these limits."""
    if limits is None:
        return "raise the memlock limit (ulimit -l)"
    # Locking one more run splits a mapping into three.
    if code == errno.ENOMEM and limits.n_mappings + 2 > limits.max_mappings:
        return (
            f"the process has {limits.n_mappings} mappings of vm.max_map_count="
            f"{limits.max_mappings}: raise it with sysctl"
        )
    if limits.memlock_bytes is not None:
        return (
            f"RLIMIT_MEMLOCK is {limits.memlock_bytes} bytes: raise it (ulimit -l unlimited, "
            "LimitMEMLOCK=infinity; `ulimits: memlock: -1` in a container that runs as "
            "non-root), or grant CAP_IPC_LOCK (--cap-add IPC_LOCK in one that runs as root)"
        )
    return (
        "RLIMIT_MEMLOCK does not bind: free memory, raise the cgroup's memory limit, "
        "or see whether the file was cut short"
    )
