"""GGUF models made on the spot. Random weights suffice for residency, never for quality."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

_TOKENIZER_PREFIX = "tokenizer."
_VOCABULARY_WITHOUT_TOKENIZER = 32
TOKENS = ("<unk>", "<s>", "</s>", "a", "b")


@contextmanager
def gguf_writer(
    path: Path, tensors_per_file: int = 0, architecture: str = "llama"
) -> Iterator[gguf.GGUFWriter]:
    """A writer; the file, or the files named as splits, are whole after the block."""
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_per_file)
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
    """A few kilobytes that a store takes and nothing can run: so many f16 matrices. With
    split, so many tensors a file."""
    random = np.random.default_rng(seed)
    with gguf_writer(path, split) as writer:
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
        for index in range(tensors):
            writer.add_tensor(f"blk.{index}.w", random.standard_normal((4, 32)).astype(np.float16))
    return path


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


TINY = MoeShape(
    layers=1, experts=2, experts_used=1, embedding=64, feed_forward=64, heads=1, context=256
)


def write_moe(
    path: Path, tokenizer_of: Path | None, shape: MoeShape, tensors_per_file: int = 0
) -> list[Path]:
    """A mixture of experts with the tokenizer of another GGUF, or with none; its files in
    order. Deterministic."""
    with gguf_writer(path, tensors_per_file) as writer:
        _write_hyperparameters(writer, shape)
        vocabulary = _copy_tokenizer(tokenizer_of, writer)
        for name, dims in _tensor_shapes(shape, vocabulary):
            writer.add_tensor(name, _random(name, dims))
    return sorted(path.parent.glob(f"{path.stem}*{path.suffix}"))


def write_mamba(path: Path, tokenizer_of: Path) -> Path:
    """A recurrent model of one layer with the tokenizer of another GGUF. Deterministic."""
    width, inner, state, rank, kernel = 64, 128, 16, 4, 4
    with gguf_writer(path, architecture="mamba") as writer:
        writer.add_name("made-mamba")
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
        writer.add_context_length(512)
        writer.add_embedding_length(width)
        writer.add_block_count(1)
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(kernel)
        writer.add_ssm_inner_size(inner)
        writer.add_ssm_state_size(state)
        writer.add_ssm_time_step_rank(rank)
        writer.add_layer_norm_rms_eps(1e-5)
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (_copy_tokenizer(tokenizer_of, writer), width),
            "output_norm.weight": (width,),
            "blk.0.attn_norm.weight": (width,),
            "blk.0.ssm_in.weight": (2 * inner, width),
            "blk.0.ssm_x.weight": (rank + 2 * state, inner),
            "blk.0.ssm_dt.weight": (inner, rank),
            "blk.0.ssm_dt.bias": (inner,),
            "blk.0.ssm_conv1d.bias": (inner,),
            "blk.0.ssm_d": (inner,),
            "blk.0.ssm_out.weight": (width, inner),
        }
        for name, dims in shapes.items():
            writer.add_tensor(name, _random(name, dims))
        writer.add_tensor("blk.0.ssm_conv1d.weight", np.ones((inner, kernel), np.float32))
        # Negative, so that the state decays.
        writer.add_tensor("blk.0.ssm_a", np.full((inner, state), -0.1, np.float32))
    return path


BERT_WORDS = ("the", "sea", "is", "blue", "deep", "cat", "dog", "runs", "fast", "tax", "law")


def write_bert(
    path: Path,
    *,
    pooling: gguf.PoolingType | None = gguf.PoolingType.MEAN,
    context: int = 128,
    layers: int = 2,
) -> Path:
    """An encoder with a tokenizer of letters and BERT_WORDS. Deterministic."""
    width, hidden = 64, 128
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, *(f"\u2581{word}" for word in (*letters, *BERT_WORDS)), *letters]
    with gguf_writer(path, architecture="bert") as writer:
        writer.add_name("made-bert")
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
        writer.add_context_length(context)
        writer.add_embedding_length(width)
        writer.add_block_count(layers)
        writer.add_feed_forward_length(hidden)
        writer.add_head_count(2)
        writer.add_layer_norm_eps(1e-12)
        writer.add_causal_attention(False)
        if pooling is not None:
            writer.add_pooling_type(pooling)
        writer.add_tokenizer_model("bert")
        writer.add_token_list(tokens)
        writer.add_token_types([3] * len(special) + [1] * (len(tokens) - len(special)))
        writer.add_token_type_count(2)
        writer.add_bos_token_id(2)
        writer.add_sep_token_id(3)
        writer.add_pad_token_id(0)
        writer.add_unk_token_id(1)
        writer.add_mask_token_id(4)
        for name, dims in _bert_shapes(len(tokens), context, layers, width, hidden):
            tensor = np.zeros(dims, np.float32) if name.endswith("bias") else _random(name, dims)
            # llama.cpp adds these to f32, and takes no other type.
            added = name.startswith(("position", "token_types"))
            writer.add_tensor(name, tensor.astype(np.float32) if added else tensor)
    return path


def _bert_shapes(
    vocabulary: int, context: int, layers: int, width: int, hidden: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (vocabulary, width)
    yield "position_embd.weight", (context, width)
    yield "token_types.weight", (2, width)
    yield "token_embd_norm.weight", (width,)
    yield "token_embd_norm.bias", (width,)
    for layer in range(layers):
        block = f"blk.{layer}."
        for projection in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"{block}{projection}.weight", (width, width)
            yield f"{block}{projection}.bias", (width,)
        yield f"{block}ffn_up.weight", (hidden, width)
        yield f"{block}ffn_up.bias", (hidden,)
        yield f"{block}ffn_down.weight", (width, hidden)
        yield f"{block}ffn_down.bias", (width,)
        for norm in ("attn_output_norm", "layer_output_norm"):
            yield f"{block}{norm}.weight", (width,)
            yield f"{block}{norm}.bias", (width,)


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


def _copy_tokenizer(tokenizer_of: Path | None, writer: gguf.GGUFWriter) -> int:
    """Copies every tokenizer key but the chat template; returns the size of the vocabulary."""
    if tokenizer_of is None:
        writer.add_tokenizer_model("no_vocab")
        writer.add_vocab_size(_VOCABULARY_WITHOUT_TOKENIZER)
        return _VOCABULARY_WITHOUT_TOKENIZER
    reader = gguf.GGUFReader(tokenizer_of)
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
