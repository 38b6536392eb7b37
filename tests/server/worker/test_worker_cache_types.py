"""What the options of the KV cache do to its size and to the answers."""

from __future__ import annotations

from pathlib import Path

import pytest
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
    # 30 layers with 3 KV heads of 64 values; llama.cpp tells it to 0.01 MiB.
    each = 256 * 30 * 3 * 64 // 32
    expected = each * (BYTES_OF_32[type_k] + BYTES_OF_32[type_v])
    assert ready.kv_bytes == pytest.approx(expected, abs=0.01 * 2**20)
    assert "Paris" in answer.text
    assert answer.end.reason == "stop"
