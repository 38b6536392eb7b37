"""GGUF files put together byte by byte, so that any of them can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    raw = name.encode() if isinstance(name, str) else name
    return text(raw) + struct.pack("<I", kind) + value


def u32(name: str, value: int) -> bytes:
    return key(name, 4, struct.pack("<I", value))


def string(name: str, value: str) -> bytes:
    return key(name, 8, text(value.encode()))


def strings(name: str, count: int, items: bytes = b"") -> bytes:
    return key(name, 9, struct.pack("<IQ", 8, count) + items)


def tensor(name: str = "w", dims: Sequence[int] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name.encode()) + shape + struct.pack("<IQ", kind, offset)


ARCHITECTURE = string("general.architecture", "llama")
SIZES = (
    u32("llama.context_length", 64),
    u32("llama.embedding_length", 32),
    u32("llama.block_count", 1),
)


@dataclass
class Raw:
    """A GGUF of given pieces; by default one that can be read."""

    magic: bytes = b"GGUF"
    version: int = 3
    keys: Sequence[bytes] = (ARCHITECTURE, *SIZES)
    tensors: Sequence[bytes] = field(default_factory=lambda: (tensor(),))
    n_keys: int | None = None
    n_tensors: int | None = None
    data: bytes = bytes(128)
    byte_order: str = "<"

    def write(self, path: Path) -> Path:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        head = self.magic + struct.pack(f"{self.byte_order}IQQ", self.version, n_tensors, n_keys)
        head += b"".join(self.keys) + b"".join(self.tensors)
        path.write_bytes(head + bytes(-len(head) % 32) + self.data)
        return path
