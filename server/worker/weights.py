"""What backs the weights of a loaded model, and which address ranges are mapped file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from residency.classes import TensorClass, classify
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
    by_class: Mapping[TensorClass, tuple[Range, ...]]
    """Of these pages, those that hold a byte of the class; neighbours share pages. A tied
    matrix is of both its classes."""
    unmapped: dict[str, Literal["anonymous", "device"]]
    """What memory holds each of the tensors that lie in no mapping, by name."""
    copied: tuple[Range, ...] = ()
    """Whole pages of anonymous memory that took the place of such mappings."""

    def after_copy(self) -> WeightMap:
        """All that was mapped has been copied in place."""
        backing = self.bytes
        anonymous = WeightBytes(anonymous=backing.anonymous + backing.file, device=backing.device)
        return WeightMap(anonymous, (), (), {}, self.unmapped, self.mapped)


def weight_map(weights: Sequence[Weight], page_bytes: int) -> WeightMap:
    distinct = {(w.host, w.address or w.name): w for w in weights}.values()
    on_file = [w for w in distinct if w.mapping is not None]
    backing = WeightBytes(
        file=sum(w.size for w in on_file),
        anonymous=sum(w.size for w in distinct if w.host and w.mapping is None),
        device=sum(w.size for w in distinct if not w.host),
    )
    sparse = sparse_names({w.name for w in distinct})
    unmapped: dict[str, Literal["anonymous", "device"]] = {
        w.name: "anonymous" if w.host else "device" for w in distinct if w.mapping is None
    }
    return WeightMap(
        backing,
        _pages(on_file, page_bytes),
        _pages((w for w in on_file if w.name in sparse), page_bytes),
        _by_class(weights, page_bytes),
        unmapped,
    )


def _by_class(
    weights: Sequence[Weight], page_bytes: int
) -> Mapping[TensorClass, tuple[Range, ...]]:
    tied = all(weight.name != "output.weight" for weight in weights)
    of_class: defaultdict[TensorClass, list[Weight]] = defaultdict(list)
    for weight in weights:
        if weight.mapping is None:
            continue
        of_class[classify(weight.name).kind].append(weight)
        # llama.cpp gives the logits' matrix the token table's name then.
        if tied and weight.name == "token_embd.weight":
            of_class[TensorClass.OUTPUT].append(weight)
    return {kind: _pages(each, page_bytes) for kind, each in of_class.items()}


def _pages(weights: Iterable[Weight], page_bytes: int) -> tuple[Range, ...]:
    runs = (Range(w.address, w.address + w.size) for w in weights)
    return tuple(align_outward(runs, page_bytes))
