"""Names of real models' tensors get the layer and the class that they have there."""

from __future__ import annotations

import gguf
import pytest

from residency.classes import Place, TensorClass, classify


@pytest.mark.parametrize(
    ("name", "layer", "kind"),
    [
        ("token_embd.weight", None, TensorClass.EMBD),
        ("per_layer_token_embd.weight", None, TensorClass.EMBD),
        ("position_embd.weight", None, TensorClass.EMBD),
        ("token_embd_norm.weight", None, TensorClass.NORM),
        ("output.weight", None, TensorClass.OUTPUT),
        ("output_norm.weight", None, TensorClass.NORM),
        ("cls.output.bias", None, TensorClass.OUTPUT),
        ("rope_freqs.weight", None, TensorClass.ROPE),
        ("blk.7.rope_factors_long.weight", 7, TensorClass.ROPE),
        ("blk.0.attn_q.weight", 0, TensorClass.ATTN),
        ("blk.31.attn_k.bias", 31, TensorClass.ATTN),
        ("blk.3.attn_sinks.weight", 3, TensorClass.ATTN),
        ("blk.3.attn_kv_a_mqa.weight", 3, TensorClass.ATTN),
        ("blk.3.attn_kv_a_norm.weight", 3, TensorClass.NORM),
        ("blk.3.indexer.attn_q_b.weight", 3, TensorClass.ATTN),
        ("blk.3.post_attention_norm.weight", 3, TensorClass.NORM),
        ("blk.3.ffn_up.weight", 3, TensorClass.FFN),
        ("blk.3.ffn_up.scale", 3, TensorClass.FFN),
        ("blk.3.ffn_up_exps.weight", 3, TensorClass.EXPERT),
        ("blk.3.ffn_gate_up_exps.scale", 3, TensorClass.EXPERT),
        ("blk.3.ffn_down_chexps.weight", 3, TensorClass.EXPERT),
        ("blk.3.ffn_gate.5.weight", 3, TensorClass.EXPERT),
        ("blk.3.ffn_gate_shexp.weight", 3, TensorClass.FFN),
        ("blk.3.ffn_norm_exps.weight", 3, TensorClass.NORM),
        ("blk.3.ffn_gate_inp.weight", 3, TensorClass.ROUTER),
        ("blk.3.ffn_gate_inp_shexp.weight", 3, TensorClass.ROUTER),
        ("blk.3.exp_probs_b.bias", 3, TensorClass.ROUTER),
        ("blk.3.ssm_a", 3, TensorClass.SSM),
        ("blk.3.ssm_norm.weight", 3, TensorClass.NORM),
        ("blk.3.time_mix_key.weight", 3, TensorClass.SSM),
        ("blk.3.channel_mix_key.weight", 3, TensorClass.FFN),
        ("blk.3.shortconv.in_proj.weight", 3, TensorClass.SSM),
        ("blk.61.nextn.embed_tokens.weight", 61, TensorClass.EMBD),
        ("blk.61.nextn.shared_head_head.weight", 61, TensorClass.OUTPUT),
        ("dec.blk.2.cross_attn_q.weight", 2, TensorClass.ATTN),
        ("enc.blk.2.ffn_up.weight", 2, TensorClass.FFN),
        ("blk.3.laurel_l.weight", 3, TensorClass.OTHER),
    ],
)
def test_real_names(name: str, layer: int | None, kind: TensorClass) -> None:
    assert classify(name) == Place(layer, kind)


@pytest.mark.parametrize(
    "name", ["", "blk", "blk.x.attn_q", "xblk.3.attn_q", "my_attn_q", "blk.3.\n\x00", "output2"]
)
def test_strange_names_are_of_no_known_class(name: str) -> None:
    assert classify(name).kind is TensorClass.OTHER


# Of the text models' names in the gguf package those that no other class takes. A newer
# package's names fail the test below until somebody has looked at them.
OF_NO_CLASS = """
altup_proj altup_unembd_proj conv1d per_layer_model_proj
blk.0.altup_correct_coef blk.0.altup_correct_scale blk.0.altup_predict_coef blk.0.altup_router
blk.0.inp_gate blk.0.laurel_l blk.0.laurel_r blk.0.layer_output_scale blk.0.nextn.eh_proj
blk.0.proj convnext.0.dw convnext.0.gamma convnext.0.pw1 convnext.0.pw2 posnet.0.attn_k
posnet.0.attn_output posnet.0.attn_q posnet.0.attn_v posnet.0.conv1 posnet.0.conv2
""".split()
# Vision and audio parts are files of their own, which no text model's weights hold.
OF_OTHER_FILES = ("v.", "a.", "mm.", "resampler.")


def test_every_name_of_the_gguf_package_has_been_looked_at() -> None:
    names = {name.format(bid=0) for name in gguf.TENSOR_NAMES.values()}
    other = {
        name
        for name in names
        if classify(name).kind is TensorClass.OTHER and not name.startswith(OF_OTHER_FILES)
    }
    assert sorted(other) == sorted(OF_NO_CLASS)
