"""Reads the table of tensors in a GGUF header, and checks that their data is there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from manifests.cursor import Cursor
from manifests.errors import InvalidGGUF

# Of ggml: GGML_MAX_NAME less its NUL, GGML_MAX_DIMS.
MAX_NAME_BYTES = 63
MAX_DIMS = 4


@dataclass(frozen=True)
class Tensor:
    """Where one tensor's data lies."""

    name: str
    offset: int
    """Bytes from the start of its file."""
    size: int
    """Bytes."""
    type: str
    """ggml's name of the element type, such as Q4_K."""
    shape: tuple[int, ...]
    """In ggml's order: the row length first."""
    file: int = 0
    """Index into the model's files."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def read_tensors(cursor: Cursor, count: int, alignment: int) -> list[Tensor]:
    """The table's entries, in the file's order; the cursor stands at the table. Raises
    InvalidGGUF unless all data lies in the file, each tensor behind the one before it."""
    names: set[str] = set()
    relative: list[Tensor] = []
    for index in range(count):
        tensor = _read_tensor(cursor, index)
        if tensor.name in names:
            raise InvalidGGUF(cursor.path, f"has the tensor {tensor.name!r} twice")
        names.add(tensor.name)
        relative.append(tensor)
    data_start = _padded(cursor.position, alignment)
    expected = 0
    placed: list[Tensor] = []
    for tensor in relative:
        placed.append(_place(cursor, tensor, data_start, expected))
        expected = _padded(expected + tensor.size, alignment)
    return placed


def _padded(position: int, alignment: int) -> int:
    return (position + alignment - 1) // alignment * alignment


def _read_tensor(cursor: Cursor, index: int) -> Tensor:
    """One tensor's entry; its offset is still that from the start of the data."""
    name = cursor.name(MAX_NAME_BYTES, f"the name of tensor {index:,}")
    n_dims = cursor.u32()
    if n_dims > MAX_DIMS:
        raise InvalidGGUF(
            cursor.path, f"tensor {name!r} has {n_dims:,} dimensions, at most {MAX_DIMS}"
        )
    shape = tuple(cursor.u64() for _ in range(n_dims))
    elements = math.prod(shape)
    if not 0 < elements < 1 << 63:
        raise InvalidGGUF(cursor.path, f"tensor {name!r} has the absurd shape {shape}")
    kind, offset = cursor.u32(), cursor.u64()
    try:
        quantization = GGMLQuantizationType(kind)
    except ValueError:
        raise InvalidGGUF(cursor.path, f"tensor {name!r} has unknown type {kind}") from None
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    row = shape[0] if shape else 1
    if row % block:
        raise InvalidGGUF(
            cursor.path,
            f"tensor {name!r} has rows of {row:,} elements, not a multiple of the "
            f"{block} of a {quantization.name} block",
        )
    return Tensor(name, offset, elements // block * block_bytes, quantization.name, shape)


def _place(cursor: Cursor, tensor: Tensor, data_start: int, expected: int) -> Tensor:
    """The tensor with its offset in the file. llama.cpp wants them one behind the other."""
    if tensor.offset != expected:
        raise InvalidGGUF(
            cursor.path,
            f"tensor {tensor.name!r} is misplaced: its data is at {tensor.offset:,}, "
            f"expected at {expected:,}",
        )
    start = data_start + tensor.offset
    if start + tensor.size > cursor.size:
        raise InvalidGGUF(
            cursor.path,
            f"truncated: tensor {tensor.name!r} ends at byte {start + tensor.size:,}, "
            f"the file has {cursor.size:,}",
        )
    return replace(tensor, offset=start)
