"""Edits: what they change, what they leave, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from made_manifests import MODES, layered

from manifests.edit import apply_edit, shadowed
from manifests.errors import InvalidValue, UnknownKey
from manifests.manifest import LoaderOptions, Parameters


def test_merges_and_keeps_the_rest() -> None:
    before = layered()
    after, changed = apply_edit(
        before,
        {"weight_residency": "lazy", "n_ctx": None},
        {"stop": ["z"], "top_p": 1},
        system=None,
        template="{{ x }}",
        modes=MODES,
    )
    assert after == before.model_copy(
        update={
            "loader": LoaderOptions(weight_residency="lazy", n_threads=2),
            "parameters": Parameters(temperature=0.5, stop=("z",), top_p=1.0),
            "system": None,
            "template": "{{ x }}",
        }
    )
    assert changed == [
        "loader.weight_residency",
        "loader.n_ctx",
        "parameters.top_p",
        "parameters.stop",
        "system",
        "template",
    ]


@pytest.mark.parametrize(
    ("loader", "parameters"),
    [(None, None), ({}, {}), ({"n_ctx": 64}, {"temperature": 0.5}), ({"n_batch": None}, None)],
)
def test_nothing_new_changes_nothing(
    loader: Mapping[str, Any] | None, parameters: Mapping[str, Any] | None
) -> None:
    assert apply_edit(layered(), loader, parameters, modes=MODES) == (layered(), [])


def test_unknown_keys_name_the_nearest() -> None:
    for loader, near in (
        ({"weight_residencyy": "lazy"}, "loader.weight_residency"),
        ({"num_ctx": 1}, "loader.n_ctx"),
        ({"num_gpu": 1}, "loader.n_gpu_layers"),
        ({"use_mlock": True}, "loader.weight_residency"),
        ({"zzz": 1}, None),
        ({"zzz": None}, None),
    ):
        with pytest.raises(UnknownKey) as raised:
            apply_edit(layered(), loader, None, modes=MODES)
        assert (f"did you mean {near!r}" in raised.value.message) == bool(near)
        assert ("did you mean" in raised.value.message) == bool(near)
        assert "known keys: loader.weight_residency, loader.pin," in raised.value.message
    with pytest.raises(UnknownKey, match=r"unknown key 'parameters\.temp', did you mean 'param"):
        apply_edit(layered(), None, {"temp": 1}, modes=MODES)


@pytest.mark.parametrize(
    ("loader", "parameters", "message"),
    [
        ({"n_ctx": "64"}, None, "loader.n_ctx: should be a valid integer, not '64'"),
        ({"n_batch": 0}, None, "loader.n_batch: should be greater than or equal to 1, not 0"),
        ({"num_parallel": 257}, None, "num_parallel: should be less than or equal to 256"),
        ({"weight_residency": 1}, None, "loader.weight_residency: should be a valid string"),
        ({"weight_residency": ["lazy"]}, None, "loader.weight_residency: should be a valid string"),
        (None, {"temperature": -1}, "parameters.temperature: should be greater than or equal to 0"),
        (None, {"temperature": float("inf")}, "parameters.temperature: should be a finite number"),
        (None, {"stop": {"a": 1}}, "parameters.stop: should be a valid tuple"),
    ],
)
def test_values_out_of_bounds(
    loader: Mapping[str, Any] | None, parameters: Mapping[str, Any] | None, message: str
) -> None:
    with pytest.raises(InvalidValue) as raised:
        apply_edit(layered(), loader, parameters, modes=MODES)
    assert raised.value.message.startswith(message) or message in raised.value.message


def test_unknown_mode_lists_the_modes() -> None:
    with pytest.raises(InvalidValue) as raised:
        apply_edit(layered(), {"weight_residency": "lazzy"}, None, modes=MODES)
    assert raised.value.message == (
        "loader.weight_residency: unknown mode 'lazzy', did you mean 'lazy'? "
        "modes: eager, lazy, pinned, lazy_then_pin_resident"
    )


def test_a_template_in_gos_language() -> None:
    with pytest.raises(InvalidValue, match=r"template: .*Go's template language"):
        apply_edit(layered(), None, None, template="{{ .Prompt }}", modes=MODES)


def test_shadowed_is_what_the_modelfile_sets() -> None:
    manifest = layered()
    assert shadowed(manifest, "loader.n_ctx")
    assert shadowed(manifest, "parameters.temperature")
    assert not shadowed(manifest, "loader.n_threads")
    assert not shadowed(manifest, "parameters.stop")
    assert not shadowed(manifest, "system")
    bare = manifest.model_copy(update={"modelfile": None})
    assert not shadowed(bare, "loader.n_ctx")
