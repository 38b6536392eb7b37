"""A model of random weights, of any size: enough for residency, never for quality.

A forward pass of the mixture touches a small part of it: 2 of 256 experts a token and
layer. That makes it quick for its size, and is what the lazy modes are for. The dense one
is a few wide layers; every token reads all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import gguf
import numpy as np

_F16_BYTES = 2
_TOKENIZER = "tokenizer."
# Rows of the feed-forward matrices come in these.
_MULTIPLE = 32
# Sign and fraction of an f16; the exponent is set apart.
_SIGN_AND_FRACTION = 0x83FF
_EXPONENT_BIAS, _FRACTION_BITS = 15, 10


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    hidden: int
    experts: int
    """0 for a dense model."""
    experts_used: int = 2
    heads: int = 8
    context: int = 4096

    def tensors(self, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and numpy shapes: rows first, the reverse of GGUF's order."""
        yield "token_embd.weight", (vocabulary, self.width)
        yield "output_norm.weight", (self.width,)
        for layer in range(self.layers):
            block = f"blk.{layer}."
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                yield f"{block}{name}.weight", (self.width, self.width)
            yield f"{block}attn_norm.weight", (self.width,)
            yield f"{block}ffn_norm.weight", (self.width,)
            each, suffix = ((self.experts,), "_exps") if self.experts else ((), "")
            if self.experts:
                yield f"{block}ffn_gate_inp.weight", (self.experts, self.width)
            yield f"{block}ffn_gate{suffix}.weight", (*each, self.hidden, self.width)
            yield f"{block}ffn_up{suffix}.weight", (*each, self.hidden, self.width)
            yield f"{block}ffn_down{suffix}.weight", (*each, self.width, self.hidden)


def shape_of(kind: str, n_bytes: float, vocabulary: int) -> Shape:
    """Of about so many bytes, a layer a gigabyte and two at least. The least is what the
    smallest feed-forward matrices leave: some 100 MB."""
    layers = max(2, ceil(n_bytes / 1e9))
    width, experts = (512, 256) if kind == "moe" else (1024, 0)
    fixed = (vocabulary * width + layers * 4 * width * width) * _F16_BYTES
    row_bytes = layers * max(experts, 1) * 3 * width * _F16_BYTES
    rows = round((n_bytes - fixed) / row_bytes / _MULTIPLE) * _MULTIPLE
    return Shape(layers, width, max(rows, _MULTIPLE), experts)


def write(path: Path, kind: str, n_bytes: float, tokenizer_of: Path, seed: int) -> None:
    """A llama-architecture GGUF with the tokenizer of another. Holds one tensor in memory."""
    reader = gguf.GGUFReader(tokenizer_of)
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].data)
    shape = shape_of(kind, n_bytes, vocabulary)
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, shape)
    _copy_tokenizer(reader, writer)
    tensors = dict(shape.tensors(vocabulary))
    for name, dims in tensors.items():
        dtype = _dtype(name, dims)
        n_bytes_of = int(np.prod(dims)) * dtype.itemsize
        writer.add_tensor_info(name, dims, dtype, n_bytes_of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(seed)
    for name, dims in tensors.items():
        writer.write_tensor_data(_weights(random, dims, _dtype(name, dims)))
    writer.close()


def _describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name("made")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.experts_used)


def _copy_tokenizer(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Every key of it but the chat template."""
    for key, field in reader.fields.items():
        if key.startswith(_TOKENIZER) and not key.endswith("chat_template"):
            kind = field.types[0]
            sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, sub_type=sub)


def _dtype(name: str, dims: tuple[int, ...]) -> np.dtype[np.generic]:
    """f32 for norms and routers, as llama.cpp wants them."""
    return np.dtype(np.float32 if len(dims) == 1 or "gate_inp" in name else np.float16)


def _weights(
    random: np.random.Generator, dims: tuple[int, ...], dtype: np.dtype[np.generic]
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Ones for norms; else noise that keeps activations tame: about one by the root of a
    row's length, up to twice that."""
    if len(dims) == 1:
        return np.ones(dims, dtype)
    if dtype == np.float32:
        return (random.standard_normal(dims, np.float32) / np.float32(dims[-1] ** 0.5)).astype(
            dtype
        )
    # Random bits with a fixed exponent: no slower than the disk.
    bits = np.frombuffer(random.bytes(int(np.prod(dims)) * _F16_BYTES), np.uint16)
    power = round(-np.log2(dims[-1]) / 2)
    bits = bits & np.uint16(_SIGN_AND_FRACTION)
    bits |= np.uint16((power + _EXPONENT_BIAS) << _FRACTION_BITS)
    return bits.view(np.float16).reshape(dims)
