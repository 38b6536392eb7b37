"""What the options of the KV cache do to its size and to the answers, and how it is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_models import write_mamba
from worker_process import loaded_worker, request

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
# Of blocks of 32 values: as many bytes, and a scale of two. f16 has two bytes a value.
BYTES_OF_32 = {"f16": 64, "q8_0": 34, "q4_0": 18}


@pytest.mark.parametrize(
    ("type_k", "type_v", "flash_attn"),
    [
        ("f16", "f16", "off"),
        ("q8_0", "f16", "off"),
        ("q8_0", "q8_0", "auto"),
        ("q4_0", "q8_0", "on"),
        ("f16", "q4_0", "on"),
    ],
)
def test_a_cache_of_any_types_has_its_size_and_answers_sensibly(
    smollm2: Path, type_k: str, type_v: str, flash_attn: str
) -> None:
    options = {"type_k": type_k, "type_v": type_v, "flash_attn": flash_attn}
    with loaded_worker(smollm2, **options) as (worker, ready):
        answer = worker.answer(request("q", QUESTION, max_tokens=40))
    # 30 layers with 3 KV heads of 64 values.
    each = 256 * 30 * 3 * 64 // 32
    expected = each * (BYTES_OF_32[type_k] + BYTES_OF_32[type_v])
    assert ready.kv_bytes == expected
    assert "Paris" in answer.text
    assert answer.end.reason == "stop"


def test_both_caches_of_a_sliding_window_count(gemma3: Path) -> None:
    """One KV head of 256 values. Of 18 layers every sixth sees all cells, the others a window
    of 512 and, for each slot, a ubatch more, in whole 256."""
    with loaded_worker(gemma3, n_ctx=4096, n_slots=1, n_ubatch=32) as (_, ready):
        cells = 3 * 4096 + 15 * 768
        assert ready.kv_bytes == cells * 256 * 2 * 2


def test_a_recurrent_state_counts(smollm2: Path, tmp_path: Path) -> None:
    """A row of each slot, in f32: 3 columns of the convolution and 16 states, of 128 channels."""
    with loaded_worker(write_mamba(tmp_path / "m.gguf", smollm2), n_slots=2) as (_, ready):
        assert ready.kv_bytes == 2 * (3 + 16) * 128 * 4
