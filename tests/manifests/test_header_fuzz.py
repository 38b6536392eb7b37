"""GGUF headers, damaged at random: refused, never a crash, a hang or a flood of memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_models import write_tiny

from manifests.errors import InvalidGGUF
from manifests.header import read_model


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("fuzz") / "sound.gguf")


def _read(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    tracemalloc.start()
    try:
        read_model([path])
        return True
    except InvalidGGUF:
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20


@settings(max_examples=150)
@given(data=st.data())
def test_truncated(sound: Path, data: st.DataObject) -> None:
    content = sound.read_bytes()
    # What is behind the last tensor is padding to the alignment, or nothing.
    cut = data.draw(st.integers(0, len(content) - 33))
    assert not _read(sound.with_name("cut.gguf"), content[:cut])


@settings(max_examples=400)
@given(data=st.data())
def test_flipped(sound: Path, data: st.DataObject) -> None:
    content = bytearray(sound.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    _read(sound.with_name("flipped.gguf"), bytes(content))


@settings(max_examples=100)
@given(tail=st.binary(max_size=300))
def test_garbage_behind_the_magic(sound: Path, tail: bytes) -> None:
    _read(sound.with_name("garbage.gguf"), b"GGUF\3\0\0\0" + tail)
