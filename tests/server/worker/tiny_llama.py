"""A llama of one layer with random weights, in one file or in splits, made on the spot."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

_WIDTH = 64
_VOCABULARY_WITHOUT_TOKENIZER = 32


def write_tiny(folder: Path, *, tokenizer_of: Path | None, tensors_per_file: int = 0) -> list[Path]:
    """The files, in order. Without a tokenizer the model only knows token ids."""
    name = folder / f"tiny-{tensors_per_file}.gguf"
    writer = gguf.GGUFWriter(name, "llama", split_max_tensors=tensors_per_file)
    writer.add_context_length(256)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(_WIDTH)
    writer.add_layer_norm_rms_eps(1e-5)
    n_vocab = _add_tokenizer(writer, tokenizer_of)
    rng = np.random.default_rng(0)
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes = {f"blk.0.{part}.weight": (_WIDTH, _WIDTH) for part in square}
    shapes["token_embd.weight"] = (n_vocab, _WIDTH)
    for tensor, shape in shapes.items():
        writer.add_tensor(tensor, rng.standard_normal(shape, dtype=np.float32) / 8)
    for tensor in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(tensor, np.ones(_WIDTH, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob(f"{name.stem}*.gguf"))


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer_of: Path | None) -> int:
    """Size of the vocabulary."""
    if tokenizer_of is None:
        writer.add_tokenizer_model("no_vocab")
        writer.add_vocab_size(_VOCABULARY_WITHOUT_TOKENIZER)
        return _VOCABULARY_WITHOUT_TOKENIZER
    fields = gguf.GGUFReader(tokenizer_of).fields
    for key, field in fields.items():
        if key.startswith("tokenizer.ggml."):
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub_type)
    return len(fields["tokenizer.ggml.tokens"].data)
