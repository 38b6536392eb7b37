"""Which tensors a forward pass reads whole, and the order in which it comes to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from residency.classes import Place, TensorClass, classify
from residency.ranges import Range

_SPARSE = (TensorClass.EMBD, TensorClass.EXPERT)
_OUTPUT_MATRICES = frozenset(("output.weight", "cls.weight", "cls.output.weight"))


@dataclass(frozen=True)
class FileTensor:
    """Where a tensor lies: bytes from the start of the file with this index."""

    name: str
    file: int
    bytes: Range


@dataclass(frozen=True)
class FilePart:
    file: int
    bytes: Range


def sparse_names(names: Collection[str]) -> frozenset[str]:
    """Of a model's tensors, those of which a forward pass touches a part.

    Of a table of embeddings a token reads one row, and of the experts it runs a few. But a
    model without an output matrix multiplies the whole table of its tokens to make logits.
    """
    sparse = {name for name in names if classify(name).kind in _SPARSE}
    if _OUTPUT_MATRICES.isdisjoint(names):
        sparse.discard("token_embd.weight")
    return frozenset(sparse)


def reading_order(tensors: Iterable[FileTensor], max_gap: int) -> list[FilePart]:
    """The bytes that hold them, layer by layer; gaps of at most max_gap bytes are filled.

    Before the layers what is looked up with the tokens, behind them what makes the logits.
    Files order layers by name, blk.10 before blk.2.
    """
    ordered = sorted(tensors, key=lambda t: (*_turn(classify(t.name)), t.file, t.bytes.start))
    parts: list[FilePart] = []
    for tensor in ordered:
        last = parts[-1] if parts else None
        if last and last.file == tensor.file and _follows(tensor.bytes, last.bytes, max_gap):
            parts[-1] = FilePart(last.file, Range(last.bytes.start, tensor.bytes.end))
        else:
            parts.append(FilePart(tensor.file, tensor.bytes))
    return parts


def _follows(part: Range, last: Range, max_gap: int) -> bool:
    return last.end <= part.start <= last.end + max_gap


def _turn(place: Place) -> tuple[int, int]:
    if place.layer is not None:
        return 1, place.layer
    return (2, 0) if place.kind in (TensorClass.OUTPUT, TensorClass.NORM) else (0, 0)
