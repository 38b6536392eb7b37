"""The cache outside the checkout: one builder at a time, and nothing in it half written."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.run import say


@contextmanager
def locked(cache: Path) -> Iterator[Path]:
    """Hold the cache for writing; gives an empty folder in it that is gone afterwards."""
    scratch = cache / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that fills {cache}")
            fcntl.flock(file, fcntl.LOCK_EX)
        for left_over in scratch.iterdir():  # of a builder that was killed
            shutil.rmtree(left_over)
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            yield Path(folder)


def put(source: Path, target: Path) -> None:
    """Move a finished file or folder of files into its place, all or nothing."""
    for path in [source] if source.is_file() else source.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)
