"""The `resident` mode in the worker: what is checked before the load, and the copy after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from residency.headroom import headroom
from residency.huge_pages import coverage, obstacle
from residency.libc import PAGE_BYTES
from residency.modes import Mode
from residency.overlay import CopyFailed, copy_in_place
from residency.preflight import refusal
from residency.procfs import ProcUnavailable
from residency.ranges import Range, align_outward, intersect
from server.worker import llama
from server.worker.refusals import LoadRefused
from server.worker.weights import WeightMap

logger = logging.getLogger("worker.resident")


def refuse_without_room(
    paths: Sequence[Path], n_gpu_layers: int, options: llama.ContextOptions
) -> None:
    """Before a byte of the weights is read. Raises LoadRefused, or NativeError for files that
    would not load either."""
    room = headroom()
    if room is None:
        logger.warning(
            "headroom unknown: neither /proc/meminfo nor a memory cgroup can be read; the "
            "weights are copied without a check that they fit"
        )
        return
    reason = refusal(Mode.RESIDENT, llama.need(paths, n_gpu_layers, options), room)
    if reason:
        raise LoadRefused(reason)


def copy_weights(model: llama.Model, paths: Sequence[Path], weights: WeightMap) -> WeightMap:
    """Copies all that is mapped, where it lies, so that the model goes on as it was. Where the
    weights are then. Raises LoadRefused; the model must not be used after that."""
    try:
        for path, mapping in zip(paths, model.mappings(), strict=True):
            pages = align_outward([mapping], PAGE_BYTES)
            copy_in_place(path, mapping, intersect(weights.mapped, pages))
    except CopyFailed as error:
        raise LoadRefused(f"the weights could not be copied to memory: {error}") from error
    _warn_of_small_pages(weights.mapped)
    return weights.after_copy()


def _warn_of_small_pages(copies: Sequence[Range]) -> None:
    try:
        pages = coverage(copies)
        if pages.is_short:
            logger.warning(
                "%d of %d bytes of the copied weights lie in huge pages, so they are read more "
                "slowly: %s",
                pages.huge,
                pages.possible,
                obstacle(),
            )
    except ProcUnavailable as error:
        logger.warning("huge pages of the copied weights: unknown (%s)", error)
