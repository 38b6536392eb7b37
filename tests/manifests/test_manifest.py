"""The stored manifest: round trips, and what a hand-edited file may do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from made_manifests import layered, made
from pydantic import ValidationError

from manifests.errors import InvalidManifest
from manifests.manifest import (
    MAX_MANIFEST_BYTES,
    LoaderOptions,
    Message,
    Parameters,
    read_manifest,
    write_manifest,
)


def _edited(**changes: Any) -> str:
    return json.dumps({**json.loads(write_manifest(layered())), **changes})


def _detailed(**changes: Any) -> str:
    return _edited(details={**json.loads(write_manifest(layered()))["details"], **changes})


BLOB = {"digest": "sha256-" + "0" * 64, "size": 9, "filename": "m.gguf"}


def test_times_are_kept_in_utc() -> None:
    manifest, _ = read_manifest(_edited(modified_at="2026-01-01T01:00:00+02:00"))
    assert manifest.modified_at.isoformat() == "2025-12-31T23:00:00+00:00"


def test_round_trip() -> None:
    manifest = layered().model_copy(
        update={
            "messages": (Message(role="user", content="hé\n"),),
            "license": ("MIT", "other"),
            "template": "{{ x }}",
            "parent_model": "x:latest",
        }
    )
    assert read_manifest(write_manifest(manifest)) == (manifest, [])


def test_unset_options_are_not_written() -> None:
    stored = json.loads(write_manifest(layered()))
    assert stored["loader"] == {"n_ctx": 64, "n_threads": 2}
    assert "template" not in stored


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        setattr(made(), "system", "x")  # noqa: B010 - the type checker knows it is frozen


@pytest.mark.parametrize(
    ("section", "given", "kept", "warning"),
    [
        ("loader", {"n_ctxx": 1, "n_batch": 8}, {"n_batch": 8}, "unknown key 'loader.n_ctxx'"),
        ("loader", {"n_ctx": "64"}, {}, "loader.n_ctx should be a valid integer, not '64'"),
        ("loader", {"n_ctx": True}, {}, "loader.n_ctx should be a valid integer, not True"),
        ("loader", {"n_threads": 513}, {}, "n_threads should be less than or equal to 512"),
        ("loader", {"n_ctx": -1}, {}, "loader.n_ctx should be greater than or equal to 0, not -1"),
        ("loader", {"weight_residency": 5}, {}, "loader.weight_residency should be a valid string"),
        ("parameters", {"top_p": 2}, {}, "top_p should be less than or equal to 1, not 2"),
        ("parameters", {"temperature": float("nan")}, {}, "temperature should be a finite number"),
        ("parameters", {"stop": [1]}, {}, "parameters.stop should be a valid string, not 1"),
        ("parameters", {"temp": 1, "top_k": 3}, {"top_k": 3}, "unknown key 'parameters.temp'"),
        ("loader", ["lazy"], {}, "loader is not an object"),
    ],
)
def test_a_bad_option_in_a_file_is_ignored_with_a_warning(
    section: str, given: object, kept: dict[str, Any], warning: str
) -> None:
    manifest, warnings = read_manifest(_edited(**{section: given}), "the/file.json")
    assert getattr(manifest, section).model_dump(exclude_none=True) == kept
    assert len(warnings) == 1
    assert warnings[0].startswith("the/file.json: ")
    assert warning in warnings[0]


def test_a_bad_option_in_the_modelfile_layer_is_ignored_too() -> None:
    layer = {"loader": {"n_ctx": "x", "n_batch": 2}, "parameters": {}, "text": "FROM x"}
    manifest, warnings = read_manifest(_edited(modelfile=layer))
    assert manifest.modelfile is not None
    assert manifest.modelfile.loader == LoaderOptions(n_batch=2)
    assert "modelfile.loader.n_ctx" in warnings[0]


def test_an_unknown_mode_is_kept_for_the_ladder() -> None:
    manifest, warnings = read_manifest(_edited(loader={"weight_residency": "lazzy"}))
    assert manifest.loader.weight_residency == "lazzy"
    assert warnings == []


def test_unknown_field_of_the_manifest_is_ignored_with_a_warning() -> None:
    manifest, warnings = read_manifest(_edited(colour="red"))
    assert manifest == layered()
    assert warnings == ["manifest: unknown key 'colour' is ignored"]


def test_one_stop_string_stands_for_a_list() -> None:
    manifest, warnings = read_manifest(_edited(parameters={"stop": "END"}))
    assert (manifest.parameters, warnings) == (Parameters(stop=("END",)), [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        (b"\xff\xfe\xff", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"blobs": ' + "1" * 5000 + "}", "is not JSON"),
        ("{}", "blobs: should be"),
        (_edited(schema_version=2), "schema_version: should be 1, not 2"),
        (_edited(blobs=[]), "blobs: should be"),
        (_edited(blobs=[{"digest": "../../x", "size": 1, "filename": "x"}]), "blobs.0.digest"),
        (_edited(details={}), "details.architecture"),
        (_edited(system=5), "system: should be a valid string, not 5"),
        (_edited(modelfile="FROM x"), "modelfile"),
        (_edited(created_at="yesterday"), "created_at"),
        (_edited(modified_at="0001-01-01T00:00:00+23:59"), "modified_at: should be a time that"),
        (_edited(created_at="9999-12-31T23:59:59-23:59"), "created_at: should be a time that"),
        (_detailed(parameter_count=10**400), "details.parameter_count"),
        (_detailed(block_count=-1), "details.block_count"),
        (_detailed(metadata={"x": 10**400}), "details.metadata.x"),
        (_edited(blobs=[{**BLOB, "size": 1 << 47}]), "blobs.0.size"),
        (" " * (MAX_MANIFEST_BYTES + 1), "has 16,777,217 bytes, at most 16,777,216"),
    ],
    ids=range(21),
)
def test_unusable_names_the_source_and_the_place(text: str | bytes, why: str) -> None:
    with pytest.raises(InvalidManifest) as raised:
        read_manifest(text, "the/file.json")
    assert raised.value.message.startswith("the/file.json: ")
    assert why in raised.value.message
