"""What backs the weights of a loaded model, and which address ranges are mapped file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from residency.ranges import Range, align_outward
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
    unmapped: dict[str, Literal["anonymous", "device"]]
    """What memory holds each of the others, by name."""


def weight_map(weights: Iterable[Weight], page_bytes: int) -> WeightMap:
    distinct = {(w.host, w.address or w.name): w for w in weights}.values()
    on_file = [w for w in distinct if w.mapping is not None]
    backing = WeightBytes(
        file=sum(w.size for w in on_file),
        anonymous=sum(w.size for w in distinct if w.host and w.mapping is None),
        device=sum(w.size for w in distinct if not w.host),
    )
    runs = (Range(w.address, w.address + w.size) for w in on_file)
    unmapped: dict[str, Literal["anonymous", "device"]] = {
        w.name: "anonymous" if w.host else "device" for w in distinct if w.mapping is None
    }
    return WeightMap(backing, tuple(align_outward(runs, page_bytes)), unmapped)
