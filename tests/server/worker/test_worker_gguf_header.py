"""What is read of a header before llama.cpp lays the model out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from server.worker.gguf_header import file_tensors, vocabulary_overrides

Describe = Callable[[gguf.GGUFWriter], None]


def test_a_layout_gets_as_many_tokens_as_the_model_has_and_no_text(smollm2: Path) -> None:
    overrides = vocabulary_overrides(smollm2)
    assert overrides is not None
    model, size, end = overrides
    assert (model.key, model.value.val_str) == (b"tokenizer.ggml.model", b"none")
    assert (size.key, size.value.val_i64) == (b"llama.vocab_size", 49_152)
    assert end.key == b""


def no_tokens(_: gguf.GGUFWriter) -> None:
    pass


def tokens_as_text(writer: gguf.GGUFWriter) -> None:
    writer.add_string("tokenizer.ggml.tokens", "a b")


def some_tokens(writer: gguf.GGUFWriter) -> None:
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])


@pytest.mark.parametrize(
    ("architecture", "describe"),
    [("llama", no_tokens), ("llama", tokens_as_text), ("a" * 117, some_tokens)],
)
def test_a_header_without_what_that_needs_is_left_as_it_is(
    tmp_path: Path, architecture: str, describe: Describe
) -> None:
    path = tmp_path / "header.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    describe(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    assert vocabulary_overrides(path) is None
    assert file_tensors(path, 0) == []


def test_what_is_no_gguf_has_nothing(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("no model")
    for each in (path, tmp_path / "gone"):
        assert vocabulary_overrides(each) is None
        assert file_tensors(each, 0) == []
