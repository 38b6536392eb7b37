"""Takes a file out of the page cache, so that the next load puts its pages somewhere new."""

from __future__ import annotations

import os
from pathlib import Path

from provision.failure import Failure
from residency.file_cache import FileProbe

# Pages that another CPU has not yet put on the lists stay behind.
_LEFT_SHARE = 0.01


def drop(path: Path) -> None:
    """Raises Failure if the pages stay, as they do while a process maps them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())  # dirty pages are not dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with FileProbe([path]) as probe:
        size = probe.size(path)
        left, source = probe.resident_bytes()
    if left is not None and left > size * _LEFT_SHARE:
        raise Failure(
            f"{path}: {left} of {size} bytes stayed in the page cache ({source}): "
            "end what maps the file, and keep it on a disk, not in a tmpfs"
        )
