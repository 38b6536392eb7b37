"""A working set as it outlives its process: runs of bytes in files instead of addresses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from residency.libc import PAGE_BYTES
from residency.ranges import Range, align_outward, intersect, join, subtract
from residency.read_order import FilePart

MAX_RUNS = 4096
"""Of one model: some 60 KB to keep. A file of 13 GB is told in pieces of 3 MB at worst."""


def file_runs(touched: Iterable[Range], mappings: Sequence[Range]) -> list[list[tuple[int, int]]]:
    """Of touched addresses the offsets in each file; mappings are the addresses of whole files,
    in their order."""
    runs = list(touched)
    return [
        [(run.start - file.start, run.end - file.start) for run in intersect(runs, [file])]
        for file in mappings
    ]


def runs_within(
    files: Sequence[Sequence[tuple[int, int]]], sizes: Sequence[int]
) -> list[list[Range]]:
    """What of the runs can be read of files of these sizes. What is no run of bytes, or lies
    beyond a file's end, is left out: they may have been kept of other files."""
    return [
        [Range(start, end) for start, end in runs if 0 <= start < end <= size]
        for runs, size in zip(files, sizes, strict=False)
    ]


def replay_order(
    files: Sequence[Sequence[Range]], read: Iterable[FilePart], max_gap: int
) -> list[FilePart]:
    """The runs of each file as parts to read, without what is read already: by file and offset,
    as a disk likes it, with gaps of at most max_gap bytes filled."""
    done = list(read)
    parts: list[FilePart] = []
    for file, runs in enumerate(files):
        others = align_outward((p.bytes for p in done if p.file == file), PAGE_BYTES)
        rest = subtract(join(runs, max_gap), others)
        parts += [FilePart(file, run) for run in rest]
    return parts
