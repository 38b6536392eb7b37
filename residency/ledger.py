"""What of a model's weights is where, as seen from outside its process at one moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from residency.file_cache import FileProbe, Source
from residency.procfs import PROC, FileMapping, ProcFS, ProcUnavailable


@dataclass(frozen=True)
class Ledger:
    """Bytes of one model, but for the faults; None is unknown, never a guess.

    resident_bytes alone speaks of the whole host. The file's and the weights' sizes
    are the model's own; the rest is what this one worker process has. A page in two
    workers' page tables is touched, and may be locked, in both.
    """

    file_bytes: int
    """Of all its files."""
    weight_bytes: int | None
    """Of all its tensors, whatever memory they are in; told by the worker."""
    mapped_bytes: int | None
    """Of the worker's mappings of the files, in whole pages."""
    resident_bytes: int | None
    """Of mapped_bytes, those in RAM, whoever brought them there."""
    touched_bytes: int | None
    """Of mapped_bytes, those in the worker's page table: what it touched, with the
    neighbours that the kernel mapped on the way (see ProcFS.pagemap_present)."""
    anonymous_bytes: int | None
    """Of weight_bytes, those copied to anonymous memory; told by the worker."""
    huge_bytes: int | None
    """Of touched_bytes, those mapped as huge pages."""
    locked_bytes: int | None
    """Of touched_bytes, those locked in RAM."""
    rss_bytes: int | None
    """Of the whole process: weights it touched, KV cache and all."""
    major_faults: int | None
    """Of the whole process, since it started."""
    probe: Source
    """How resident_bytes was learned."""


def sample(
    pid: int,
    paths: Sequence[Path],
    weight_bytes: int | None,
    file_probe: FileProbe,
    proc: ProcFS = PROC,
    *,
    anonymous_bytes: int | None = None,
) -> Ledger:
    """The ledger now. Asks the kernel only, so a busy worker delays nothing.

    file_probe has to hold the paths. Raises ProcessGone.
    """
    mappings = _model_mappings(pid, paths, file_probe, proc)
    mapped = _sum(mappings, lambda m: len(m.addresses))
    touched = _sum(mappings, lambda m: m.rss_bytes)
    resident, probe = _resident(mappings, mapped, touched, file_probe)
    rss, faults = _process(pid, proc)
    return Ledger(
        file_bytes=sum(file_probe.size(path) for path in paths),
        weight_bytes=weight_bytes,
        mapped_bytes=mapped,
        resident_bytes=resident,
        touched_bytes=touched,
        anonymous_bytes=anonymous_bytes,
        huge_bytes=_sum(mappings, lambda m: m.huge_bytes),
        locked_bytes=_sum(mappings, lambda m: m.locked_bytes),
        rss_bytes=rss,
        major_faults=faults,
        probe=probe,
    )


_Mappings = dict[Path, list[FileMapping]]
"""A worker's mappings by the file they map."""


def _model_mappings(
    pid: int, paths: Sequence[Path], file_probe: FileProbe, proc: ProcFS
) -> _Mappings | None:
    by_identity = {
        identity: path for path in paths if (identity := file_probe.identity(path)) is not None
    }
    mappings: _Mappings = {path: [] for path in paths}
    try:
        for mapping in proc.smaps(pid, by_identity):
            assert mapping.file is not None  # none else was asked for
            mappings[by_identity[mapping.file]].append(mapping)
    except ProcUnavailable:
        return None
    return mappings


def _sum(mappings: _Mappings | None, of: Callable[[FileMapping], int]) -> int | None:
    if mappings is None:
        return None
    return sum(of(mapping) for each in mappings.values() for mapping in each)


def _resident(
    mappings: _Mappings | None, mapped: int | None, touched: int | None, file_probe: FileProbe
) -> tuple[int | None, Source]:
    if mappings is None:
        return None, Source.UNKNOWN
    resident, source = file_probe.resident_bytes(
        {path: [mapping.file_range for mapping in each] for path, each in mappings.items()}
    )
    # The page cache is kept from us, but what the worker has in its page table is in RAM.
    if resident is None and mapped == touched:
        return mapped, Source.SMAPS
    return resident, source


def _process(pid: int, proc: ProcFS) -> tuple[int | None, int | None]:
    """RSS and major faults; read last, as a process that ended meanwhile raises here."""
    try:
        return proc.status(pid).rss_bytes, proc.major_faults(pid)
    except ProcUnavailable:
        return None, None
