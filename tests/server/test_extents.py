"""What the map is told of where a model's tensors lie."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from made_calls import made_ready, made_spec
from made_models import write_tiny

from manifests.errors import InvalidGGUF
from manifests.header import read_model
from residency.class_map import Backing
from residency.classes import Place, TensorClass
from server.calls import LoadedModel, ModelSpec
from server.extents import extents, mapped_at


def of_files(paths: list[Path]) -> ModelSpec:
    spec = made_spec()
    load = msgspec.structs.replace(spec.load, paths=[str(path) for path in paths])
    return ModelSpec(spec.name, spec.identity, load, spec.keep_alive)


def test_the_tensors_of_a_split_model_lie_in_their_own_files(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny.gguf", tensors=4, split=2)
    paths = sorted(tmp_path.glob("tiny-*.gguf"))
    ready = msgspec.structs.replace(
        made_ready(), mapped_at=[4096, 8192], unmapped={"blk.3.w": "device"}
    )
    model = LoadedModel(of_files(paths), 1, ready, 0, 0, None)
    found = extents(model)
    assert [extent.path for extent in found] == [paths[0], paths[0], paths[1], paths[1]]
    assert [extent.place for extent in found] == [Place(n, TensorClass.OTHER) for n in range(4)]
    assert [extent.elsewhere for extent in found] == [None, None, None, Backing.DEVICE]
    assert sum(len(extent.bytes) for extent in found) == read_model(paths).weight_bytes
    # Each holds the bytes that the file has there.
    assert all(extent.bytes.end <= extent.path.stat().st_size for extent in found)
    assert mapped_at(model) == dict(zip(paths, (4096, 8192), strict=True))


def test_a_model_that_loads_has_told_nothing_yet(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    model = LoadedModel(of_files([path]), 1, None, 0, 0, None)
    assert {extent.elsewhere for extent in extents(model)} == {None}
    assert mapped_at(model) == {}


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    model = LoadedModel(of_files([tmp_path / "gone.gguf"]), 1, None, 0, 0, None)
    with pytest.raises(InvalidGGUF, match=r"gone\.gguf"):
        extents(model)
