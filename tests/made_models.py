"""GGUF models made on the spot. Random weights suffice for residency, never for quality."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

_TOKENIZER_PREFIX = "tokenizer."


@dataclass(frozen=True)
class MoeShape:
    """A llama-architecture mixture of experts. The default is about 360 MB in f16."""

    layers: int = 2
    experts: int = 48
    experts_used: int = 2
    embedding: int = 512
    feed_forward: int = 1024
    heads: int = 4
    context: int = 512

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert in one layer: gate, up and down, two bytes a weight."""
        return 3 * self.embedding * self.feed_forward * 2


def write_moe(path: Path, tokenizer_of: Path, shape: MoeShape | None = None) -> MoeShape:
    """Write a mixture of experts to path with the tokenizer of another GGUF. Deterministic."""
    shape = shape or MoeShape()
    reader = gguf.GGUFReader(tokenizer_of)
    writer = gguf.GGUFWriter(path, "llama")
    _write_hyperparameters(writer, shape)
    vocabulary = _copy_tokenizer(reader, writer)
    for name, dims in _tensor_shapes(shape, vocabulary):
        writer.add_tensor(name, _random(name, dims))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return shape


def _write_hyperparameters(writer: gguf.GGUFWriter, shape: MoeShape) -> None:
    writer.add_name("made-moe")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(shape.embedding // shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.experts_used)


def _copy_tokenizer(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> int:
    """Copies every tokenizer key but the chat template; returns the size of the vocabulary."""
    for key, field in reader.fields.items():
        if not key.startswith(_TOKENIZER_PREFIX) or key.endswith("chat_template"):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, sub_type=sub)
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def _tensor_shapes(shape: MoeShape, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and numpy shapes (rows first, the reverse of GGUF's order)."""
    width, hidden, experts = shape.embedding, shape.feed_forward, shape.experts
    yield "token_embd.weight", (vocabulary, width)
    yield "output_norm.weight", (width,)
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        for projection in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"{block}{projection}.weight", (width, width)
        yield f"{block}attn_norm.weight", (width,)
        yield f"{block}ffn_norm.weight", (width,)
        yield f"{block}ffn_gate_inp.weight", (experts, width)
        yield f"{block}ffn_gate_exps.weight", (experts, hidden, width)
        yield f"{block}ffn_up_exps.weight", (experts, hidden, width)
        yield f"{block}ffn_down_exps.weight", (experts, width, hidden)


def _random(name: str, dims: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """f32 ones for norms, as llama.cpp wants them; else f16, scaled to keep activations tame."""
    if len(dims) == 1:
        return np.ones(dims, dtype=np.float32)
    seed = np.frombuffer(name.encode(), dtype=np.uint8)
    noise = np.random.default_rng(seed).standard_normal(dims, dtype=np.float32)
    scaled: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = noise / np.float32(dims[-1] ** 0.5)
    return scaled if "gate_inp" in name else scaled.astype(np.float16)
