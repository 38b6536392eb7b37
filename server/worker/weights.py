"""What backs the weights of a loaded model, and which address ranges are mapped file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from residency.ranges import Range, align_outward
from residency.read_order import sparse_names
from server.protocol import WeightBytes


@dataclass(frozen=True)
class Weight:
    """Where one weight tensor lies. `mapping` is the index of the file mapping that holds it."""

    name: str
    address: int
    """0 when no host pointer reaches it."""
    size: int
    mapping: int | None
    host: bool


@dataclass(frozen=True)
class WeightMap:
    """Tied tensors, which share their bytes, count once."""

    bytes: WeightBytes
    mapped: tuple[Range, ...]
    """Whole pages of file mappings that hold weights, sorted and disjoint."""
    sparse: tuple[Range, ...]
    """Of mapped, the pages of tensors that a forward pass touches in part."""


def weight_map(weights: Iterable[Weight], page_bytes: int) -> WeightMap:
    distinct = {(w.host, w.address or w.name): w for w in weights}.values()
    on_file = [w for w in distinct if w.mapping is not None]
    backing = WeightBytes(
        file=sum(w.size for w in on_file),
        anonymous=sum(w.size for w in distinct if w.host and w.mapping is None),
        device=sum(w.size for w in distinct if not w.host),
    )
    sparse = sparse_names({w.name for w in distinct})
    return WeightMap(
        backing,
        _pages(on_file, page_bytes),
        _pages((w for w in on_file if w.name in sparse), page_bytes),
    )


def _pages(weights: Iterable[Weight], page_bytes: int) -> tuple[Range, ...]:
    runs = (Range(w.address, w.address + w.size) for w in weights)
    return tuple(align_outward(runs, page_bytes))
