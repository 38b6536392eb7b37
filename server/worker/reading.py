"""What this worker reads of its model's files ahead of the computing."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from residency.libc import PAGE_BYTES
from residency.modes import LoadPlan
from residency.read_order import reading_order, sparse_names
from residency.reader import Reader, open_reader
from server.worker import llama

logger = logging.getLogger("worker.reading")


@contextmanager
def read_ahead(paths: Sequence[Path], plan: LoadPlan) -> Iterator[Callable[[], None]]:
    """Reads all weights, or only those that every forward pass touches, while the block runs.

    Gives what reads again what has left the cache since. Raises OSError for a file that cannot
    be opened.
    """
    tensors = [t for file, path in enumerate(paths) for t in llama.file_tensors(path, file)]
    skipped = frozenset() if plan.prefetch else sparse_names({t.name for t in tensors})
    parts = reading_order((t for t in tensors if t.name not in skipped), max_gap=PAGE_BYTES)
    with open_reader(llama.READER_LIBRARY, paths, parts) as reader:
        try:
            yield reader.again
        finally:
            _tell_failure(reader)


def _tell_failure(reader: Reader) -> None:
    told = reader.progress()
    if told.errno:
        logger.warning(
            "reading ahead ended after %d of %d bytes: %s; pages come as they are touched",
            told.bytes_read,
            reader.n_bytes,
            os.strerror(told.errno),
        )
