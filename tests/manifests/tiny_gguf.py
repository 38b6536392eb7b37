"""GGUF files of a few kilobytes: sound ones by gguf's writer, odd ones byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

TOKENS = ("<unk>", "<s>", "</s>", "a", "b")


def write_tiny(
    path: Path,
    *,
    seed: int = 0,
    template: str | None = "{{ messages }}",
    file_type: int | None = 1,
    tensors: int = 3,
    split: int = 0,
    context: int | None = 128,
) -> Path:
    """A llama of `tensors` f16 matrices. With split, so many tensors a file, named as splits."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split)
    writer.add_name("tiny")
    if context is not None:
        writer.add_context_length(context)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(list(TOKENS))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if template is not None:
        writer.add_chat_template(template)
    random = np.random.default_rng(seed)
    for index in range(tensors):
        writer.add_tensor(f"blk.{index}.w", random.standard_normal((4, 32)).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
