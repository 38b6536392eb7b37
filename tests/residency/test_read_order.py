"""What is read ahead, and in which order, decided on names and places alone."""

from __future__ import annotations

from residency.ranges import Range
from residency.read_order import FilePart, FileTensor, reading_order, sparse_names

DENSE = ("token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight")


def test_experts_and_embedding_tables_are_touched_in_part() -> None:
    names = {
        *DENSE,
        "output.weight",
        "per_layer_token_embd.weight",
        "blk.0.ffn_gate_exps.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.ffn_up_shexp.weight",
    }
    assert sparse_names(names) == {
        "token_embd.weight",
        "per_layer_token_embd.weight",
        "blk.0.ffn_gate_exps.weight",
    }


def test_a_table_that_is_the_output_matrix_too_is_touched_whole() -> None:
    assert sparse_names({*DENSE, "per_layer_token_embd.weight"}) == {"per_layer_token_embd.weight"}


def tensor(name: str, start: int, end: int, file: int = 0) -> FileTensor:
    return FileTensor(name, file, Range(start, end))


def test_layers_come_in_their_own_order_and_what_makes_logits_last() -> None:
    tensors = [
        tensor("output.weight", 0, 10),
        tensor("output_norm.weight", 100, 110),
        tensor("blk.10.attn_q.weight", 200, 210),
        tensor("blk.2.attn_q.weight", 300, 310),
        tensor("token_embd.weight", 400, 410),
        tensor("rope_freqs.weight", 500, 510),
    ]
    order = [part.bytes.start for part in reading_order(tensors, 0)]
    assert order == [400, 500, 300, 200, 0, 100]


def test_neighbours_are_one_part_and_files_are_kept_apart() -> None:
    tensors = [
        tensor("blk.0.attn_k.weight", 32, 100),
        tensor("blk.0.attn_q.weight", 104, 200),
        tensor("blk.1.attn_k.weight", 200, 300),
        tensor("blk.1.attn_q.weight", 309, 400),
        tensor("blk.2.attn_k.weight", 400, 500, file=1),
    ]
    assert reading_order(tensors, max_gap=8) == [
        FilePart(0, Range(32, 300)),
        FilePart(0, Range(309, 400)),
        FilePart(1, Range(400, 500)),
    ]


def test_every_byte_is_in_exactly_one_part() -> None:
    tensors = [tensor(f"blk.{i % 7}.ffn_up.weight", i * 10, i * 10 + 10) for i in range(40)]
    parts = sorted(
        (part.bytes for part in reading_order(tensors, max_gap=5)), key=lambda r: r.start
    )
    assert [byte for part in parts for byte in range(part.start, part.end)] == list(range(400))
