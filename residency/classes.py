"""What a weight tensor is for, and which layer it belongs to, read off its name in the GGUF.

The names are llama.cpp's: LLM_TENSOR_NAMES in its src/llama-arch.cpp.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class TensorClass(StrEnum):
    """What a forward pass uses a tensor for, and so how much of it a token touches."""

    ATTN = "attn"
    """Projections, biases and sinks of attention, its sparse indexer included."""
    NORM = "norm"
    """Every norm, whatever it normalises: small, and touched by every token."""
    EMBD = "embd"
    """Tables of which a token reads a row: tokens, positions, token types, per-layer tokens."""
    OUTPUT = "output"
    """From the last layer to logits, labels or the pooled embedding."""
    ROUTER = "router"
    """What chooses among the experts."""
    FFN = "ffn"
    """Dense feed-forward. A shared expert is one: every token runs it."""
    EXPERT = "expert"
    """Feed-forward experts that a router chooses among: a token touches few of them."""
    SSM = "ssm"
    """The mixer in the place of attention: Mamba, RWKV, gated delta net, short convolution."""
    ROPE = "rope"
    """Frequencies and factors of rotary positions."""
    OTHER = "other"
    """None of these: what single architectures have beside them, and names not known."""


@dataclass(frozen=True)
class Place:
    """Where in its model a tensor belongs."""

    layer: int | None
    """As the file numbers them; None outside the layers."""
    kind: TensorClass


# Encoder and decoder of one model number their layers apart.
_LAYER = re.compile(r"(?:(?:enc|dec)\.)?blk\.([0-9]{1,9})\.(.+)", re.DOTALL)
_SUFFIX = re.compile(r"\.(?:weight|bias|scales?|input_scale|lora_[ab])\Z")

# The first that fits, as names of the more special classes fit later patterns too.
_PATTERNS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (TensorClass.NORM, r".*norm.*|.*_ln"),
        (TensorClass.ROPE, r"rope_(freqs|factors_\w+)|attn_rot_embd"),
        (TensorClass.ROUTER, r"ffn_gate_(inp\w*|tid2eid)|exp_probs_b\w*"),
        # Old mixtures have a tensor for each expert, ffn_up.7.
        (TensorClass.EXPERT, r"ffn_\w+_(ch)?exps|ffn_(gate|down|up)\.[0-9]+"),
        (
            TensorClass.EMBD,
            r"(token|position|per_layer_token)_embd|token_types|nextn\.embed_tokens",
        ),
        (TensorClass.OUTPUT, r"output(_\w+)?|cls(\.output)?|dense_[23]|nextn\.shared_head_head"),
        (TensorClass.SSM, r"ssm_\w+|time_mix_\w+|shortconv\.\w+"),
        (TensorClass.ATTN, r"(vis_|cross_)?attn_\w+|indexer[._]\w+"),
        (TensorClass.FFN, r"ffn([._]\w+)?|channel_mix_\w+|vis_(gate|down|up)"),
    )
)


def classify(name: str) -> Place:
    """The place of the tensor with this name; any text is one, a strange one OTHER."""
    in_layer = _LAYER.fullmatch(name)
    layer = int(in_layer[1]) if in_layer else None
    stem = _SUFFIX.sub("", in_layer[2] if in_layer else name)
    kinds = (kind for kind, pattern in _PATTERNS if pattern.fullmatch(stem))
    return Place(layer, next(kinds, TensorClass.OTHER))
