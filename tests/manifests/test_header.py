"""GGUF headers: what is read from sound files, and what unsound ones are refused with."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from made_models import write_tiny
from tiny_gguf import ARCHITECTURE, SIZES, Raw, key, string, strings, tensor, text, u32

from manifests.errors import InvalidGGUF
from manifests.header import GGUFHeader, read_model, split_paths

SPLIT = "m-0000{}-of-00003.gguf"


def test_smollm2(smollm2: Path) -> None:
    header = read_model([smollm2])
    assert (header.architecture, header.quantization) == ("llama", "Q4_1")
    assert (header.context_length, header.embedding_length, header.block_count) == (8192, 576, 30)
    assert header.parameter_count == 134_515_008
    assert (header.bos_token, header.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert header.chat_template is not None
    assert "im_start" in header.chat_template
    assert header.file_bytes == smollm2.stat().st_size
    assert max(t.offset + t.size for t in header.tensors) == header.file_bytes


def test_gemma3_has_no_template(gemma3: Path) -> None:
    header = read_model([gemma3])
    assert (header.architecture, header.quantization) == ("gemma3", "Q4_K_M")
    assert header.chat_template is None
    assert (header.bos_token, header.eos_token) == ("<bos>", "<eos>")


def test_extents_are_those_of_ggufs_own_reader(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", tensors=40)
    theirs = [
        (t.name, t.data_offset, t.n_bytes, t.tensor_type.name, tuple(t.shape.tolist()))
        for t in gguf.GGUFReader(path).tensors
    ]
    header = read_model([path])
    assert [(t.name, t.offset, t.size, t.type, t.shape) for t in header.tensors] == theirs
    assert header.weight_bytes == sum(size for _, _, size, _, _ in theirs)


def test_metadata_has_scalars_of_every_type(tmp_path: Path) -> None:
    packed = {"B": 0, "b": 1, "H": 2, "h": 3, "I": 4, "i": 5, "f": 6, "?": 7, "Q": 10, "q": 11}
    odd = [key(f"x.{code}", kind, struct.pack(f"<{code}", 1)) for code, kind in packed.items()]
    odd.append(key("x.nan", 12, struct.pack("<d", float("nan"))))
    odd.append(key("x.array", 9, struct.pack("<IQ", 4, 2) + bytes(8)))
    raw = Raw(keys=(ARCHITECTURE, *SIZES, *odd))
    metadata = read_model([raw.write(tmp_path / "m.gguf")]).metadata
    assert {key: metadata[key] for key in metadata if key.startswith("x.")} == {
        f"x.{code}": 1 for code in packed
    }
    assert metadata["x.?"] is True


@pytest.mark.parametrize(
    ("file_type", "word"),
    [(15, "Q4_K_M"), (0, "F32"), (1024 + 7, "Q8_0"), (None, "F16"), (9999, "F16")],
)
def test_quantization_is_the_files_word_else_the_commonest_type(
    tmp_path: Path, file_type: int | None, word: str
) -> None:
    path = write_tiny(tmp_path / "m.gguf", file_type=file_type)
    assert read_model([path]).quantization == word


def test_special_tokens_out_of_the_vocabulary_are_none(tmp_path: Path) -> None:
    tokens = strings("tokenizer.ggml.tokens", 2, text(b"<s>") + text(b"x"))
    ids = (u32("tokenizer.ggml.bos_token_id", 0), u32("tokenizer.ggml.eos_token_id", 2))
    raw = Raw(keys=(*ids, tokens, ARCHITECTURE, *SIZES))
    header = read_model([raw.write(tmp_path / "m.gguf")])
    assert (header.bos_token, header.eos_token) == ("<s>", None)


def test_strings_longer_than_the_window(tmp_path: Path) -> None:
    """The scan's window is 1 MiB: values across its edge, and skips far beyond it."""
    tokens = strings("tokenizer.ggml.tokens", 40_000, text(b"t" * 50) * 40_000)
    long = string("x.long", "l" * (3 << 20))
    template = string("tokenizer.chat_template", "T" * 900_000)
    raw = Raw(keys=(tokens, long, template, ARCHITECTURE, *SIZES))
    header = read_model([raw.write(tmp_path / "m.gguf")])
    assert header.chat_template == "T" * 900_000
    assert "x.long" not in header.metadata


BROKEN: dict[str, tuple[Raw, str]] = {
    "magic": (Raw(magic=b"PK\3\4"), r"not a GGUF file: it starts with b'PK"),
    "old": (Raw(version=1), "GGUF version 1;"),
    "new": (Raw(version=4), "GGUF version 4;"),
    "big-endian": (Raw(byte_order=">"), "big-endian"),
    "keys": (Raw(n_keys=1 << 40), "claims 1,099,511,627,776 keys; at most"),
    "tensors": (Raw(n_tensors=1 << 63), "claims 9,223,372,036,854,775,808 tensors"),
    "one tensor too many": (Raw(n_tensors=2, data=b""), "truncated"),
    "key length": (Raw(keys=(struct.pack("<Q", 1 << 50),)), "bytes for key 0; at most 65,535"),
    "key not UTF-8": (Raw(keys=(key(b"\xff\xfe", 4, bytes(4)),)), "key 0 is not UTF-8"),
    "key twice": (Raw(keys=(ARCHITECTURE, ARCHITECTURE)), "'general.architecture' twice"),
    "value type": (Raw(keys=(key("x", 99, b""),)), "unknown value type 99"),
    "nested array": (Raw(keys=(key("x", 9, struct.pack("<IQ", 9, 1)),)), "array of value type 9"),
    "string length": (
        Raw(keys=(key("x", 8, struct.pack("<Q", 1 << 60)),)),
        "truncated: the header needs byte 1,152,921,504,606,",
    ),
    "string array count": (Raw(keys=(strings("x", 1 << 40),)), "claims 1,099,511,627,776 strings"),
    "string array cut": (Raw(keys=(strings("x", 1000),)), "truncated"),
    "number array count": (
        Raw(keys=(key("x", 9, struct.pack("<IQ", 4, 1 << 62)),)),
        "truncated",
    ),
    "no architecture": (Raw(keys=SIZES), "has no general.architecture"),
    "architecture a number": (Raw(keys=(u32("general.architecture", 1),)), "is 1, not a string"),
    "no context": (Raw(keys=(ARCHITECTURE, *SIZES[1:])), "has no llama.context_length"),
    "absurd context": (
        Raw(keys=(ARCHITECTURE, *SIZES[1:], u32("llama.context_length", 0xFFFFFFFF))),
        "llama.context_length is 4294967295, not a sensible",
    ),
    "template too long": (
        Raw(keys=(ARCHITECTURE, *SIZES, string("tokenizer.chat_template", "x" * (2 << 20)))),
        "tokenizer.chat_template is too long",
    ),
    "tensor twice": (Raw(tensors=(tensor(), tensor(offset=128))), "the tensor 'w' twice"),
    "tensor name": (Raw(tensors=(tensor("w" * 64),)), "claims 64 bytes for the name of tensor 0"),
    "dims": (Raw(tensors=(tensor(dims=(1, 1, 1, 1, 1)),)), "has 5 dimensions, at most 4"),
    "zero dim": (Raw(tensors=(tensor(dims=(32, 0)),)), r"absurd shape \(32, 0\)"),
    "overflow": (Raw(tensors=(tensor(dims=(1 << 32, 1 << 32)),)), "absurd shape"),
    "tensor type": (Raw(tensors=(tensor(kind=77),)), "unknown type 77"),
    "removed type": (Raw(tensors=(tensor(kind=31),)), "unknown type 31"),
    "block": (Raw(tensors=(tensor(dims=(33,), kind=2),)), "rows of 33 elements, not a multiple"),
    "alignment": (
        Raw(keys=(ARCHITECTURE, *SIZES, u32("general.alignment", 24))),
        "alignment 24, which is no power of two",
    ),
    "misplaced": (Raw(tensors=(tensor(offset=16),)), "data is at 16, expected at 0"),
    "overlap": (Raw(tensors=(tensor(), tensor("v"))), "'v' is misplaced"),
    "data cut": (Raw(data=bytes(127)), r"truncated: tensor 'w' ends at byte \d+, the file has"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_refused_with_what_is_wrong_in_little_memory(tmp_path: Path, fault: str) -> None:
    raw, message = BROKEN[fault]
    path = raw.write(tmp_path / "m.gguf")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidGGUF, match=message) as raised:
            read_model([path])
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert str(path) in raised.value.message


def test_the_broken_ones_differ_from_a_sound_one(tmp_path: Path) -> None:
    header = read_model([Raw().write(tmp_path / "m.gguf")])
    assert [(t.name, t.size) for t in header.tensors] == [("w", 128)]


def test_header_beyond_its_limit_ends(tmp_path: Path) -> None:
    """A sparse file may be as large as its header claims."""
    array = key("x", 9, struct.pack("<IQ", 0, 1 << 40))
    path = Raw(keys=(array, ARCHITECTURE, *SIZES)).write(tmp_path / "m.gguf")
    os.truncate(path, 2 << 40)
    with pytest.raises(InvalidGGUF, match="header is longer than 134,217,728 bytes"):
        read_model([path])


def test_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "pipe", "not a regular")):
        with pytest.raises(InvalidGGUF, match=why):
            read_model([path])
    with pytest.raises(InvalidGGUF, match="No such file"):
        read_model([tmp_path / "none.gguf"])
    with pytest.raises(InvalidGGUF, match="is no path"):
        read_model([Path("a\0b")])


def test_a_vocabulary_alone_is_no_model(tmp_path: Path) -> None:
    path = Raw(tensors=()).write(tmp_path / "m.gguf")
    with pytest.raises(InvalidGGUF, match="no tensors"):
        read_model([path])


def _splits(folder: Path) -> list[Path]:
    write_tiny(folder / "m.gguf", split=1)
    return [folder / SPLIT.format(number) for number in (1, 2, 3)]


def test_splits_are_one_model(tmp_path: Path) -> None:
    whole = read_model([write_tiny(tmp_path / "whole.gguf")])
    splits = _splits(tmp_path)
    assert split_paths(splits[1]) == splits
    header = read_model(splits)
    assert [t.file for t in header.tensors] == [0, 1, 2]
    assert header.parameter_count == whole.parameter_count
    assert header.weight_bytes == whole.weight_bytes
    assert header.file_bytes == sum(path.stat().st_size for path in splits)
    assert _bytes_of(header, splits) == _bytes_of(whole, [tmp_path / "whole.gguf"])


def _bytes_of(header: GGUFHeader, paths: list[Path]) -> list[bytes]:
    return [paths[t.file].read_bytes()[t.offset : t.offset + t.size] for t in header.tensors]


def test_tensor_data_is_where_the_extent_says(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", seed=7)
    expected = np.random.default_rng(7).standard_normal((4, 32)).astype(np.float16).tobytes()
    assert _bytes_of(read_model([path]), [path])[0] == expected


def test_missing_split_is_named(tmp_path: Path) -> None:
    splits = _splits(tmp_path)
    splits[1].unlink()
    with pytest.raises(InvalidGGUF, match=r"split 2 of 3 is missing: m-00002-of-00003\.gguf"):
        split_paths(splits[0])


def test_split_name_beyond_its_count(tmp_path: Path) -> None:
    with pytest.raises(InvalidGGUF, match="is named split 4 of 3"):
        split_paths(tmp_path / SPLIT.format(4))


@pytest.mark.parametrize("order", [(0,), (0, 2, 1), (0, 1), (0, 1, 1), (1, 2, 0)])
def test_other_than_all_splits_in_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    splits = _splits(tmp_path)
    with pytest.raises(InvalidGGUF, match="says it is split"):
        read_model([splits[index] for index in order])


def test_splits_of_different_models(tmp_path: Path) -> None:
    splits = _splits(tmp_path)
    (tmp_path / "other").mkdir()
    write_tiny(tmp_path / "other" / "m.gguf", split=2, tensors=6)
    mixed = [splits[0], tmp_path / "other" / SPLIT.format(2), splits[2]]
    with pytest.raises(InvalidGGUF, match="hold 4 tensors, the header says 3"):
        read_model(mixed)
