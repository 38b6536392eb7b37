"""What paging has cost this process: faults that waited for a disk, and bytes read from disks."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass

# Linux counts bytes read, as read_bytes of /proc/<pid>/io, and tells them in these.
# task_io_get_inblock in linux/task_io_accounting_ops.h
_BLOCK_BYTES = 512


@dataclass(frozen=True)
class Paging:
    major_faults: int
    read_bytes: int | None
    """Fetched from storage because this process wanted them or the kernel read ahead for it;
    what the page cache had already is not in it. None where the system counts operations,
    whatever their size."""

    def since(self, before: Paging) -> Paging:
        """What came after an earlier reading."""
        read = None
        if self.read_bytes is not None and before.read_bytes is not None:
            read = self.read_bytes - before.read_bytes
        return Paging(self.major_faults - before.major_faults, read)


def paging() -> Paging:
    """Of all threads of this process, since it began."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    counts_bytes = sys.platform == "linux"
    return Paging(usage.ru_majflt, usage.ru_inblock * _BLOCK_BYTES if counts_bytes else None)
