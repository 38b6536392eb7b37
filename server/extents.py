"""Where the tensors of a loaded model lie: what its files say, and what its worker said of it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from manifests.header import read_model
from manifests.tensors import Tensor
from residency.class_map import Backing, Extent
from residency.classes import classify
from residency.ranges import Range
from server.calls import LoadedModel


def extents(model: LoadedModel) -> list[Extent]:
    """Of all its tensors. Reads the files' headers once. Raises InvalidGGUF."""
    paths = tuple(Path(path) for path in model.spec.load.paths)
    unmapped = model.ready.unmapped if model.ready else {}
    return [
        Extent(
            classify(tensor.name),
            paths[tensor.file],
            Range(tensor.offset, tensor.offset + tensor.size),
            Backing(unmapped[tensor.name]) if tensor.name in unmapped else None,
        )
        for tensor in _tensors(paths)
    ]


def mapped_at(model: LoadedModel) -> dict[Path, int]:
    """Where its worker maps, or has mapped, the first byte of each file."""
    addresses = model.ready.mapped_at if model.ready else []
    return {Path(path): at for path, at in zip(model.spec.load.paths, addresses, strict=False)}


# The store names files by their content, so that a path never means others. A table has some
# hundred tensors.
@lru_cache(maxsize=8)
def _tensors(paths: tuple[Path, ...]) -> tuple[Tensor, ...]:
    return read_model(paths).tensors
