"""Precedence: each rung shadows the next, and says so."""

from __future__ import annotations

import pytest
from made_manifests import MODES

from manifests.manifest import LoaderOptions, Parameters
from manifests.precedence import Effective, Source, resolve_loader, resolve_parameters

DEFAULTS: dict[str, int | str] = {"weight_residency": "eager", "n_ctx": 0, "num_parallel": 1}


def _mode(
    modelfile: str | None, manifest: str | None, environment: str | None
) -> tuple[Effective, list[str]]:
    effective, warnings = resolve_loader(
        LoaderOptions(weight_residency=modelfile),
        LoaderOptions(weight_residency=manifest),
        {} if environment is None else {"weight_residency": environment},
        MODES,
        DEFAULTS,
    )
    return effective["weight_residency"], warnings


@pytest.mark.parametrize(
    ("rungs", "value", "source"),
    [
        (("pinned", "lazy", "eager"), "pinned", "modelfile"),
        ((None, "lazy", "pinned"), "lazy", "manifest"),
        ((None, None, "pinned"), "pinned", "environment"),
        ((None, None, None), "eager", "default"),
        (("pinned", "typo", "typo"), "pinned", "modelfile"),
        ((None, "lazy", "typo"), "lazy", "manifest"),
    ],
)
def test_top_wins(
    rungs: tuple[str | None, str | None, str | None], value: str, source: Source
) -> None:
    assert _mode(*rungs) == (Effective(value, source), [])


@pytest.mark.parametrize(
    ("rungs", "source"),
    [
        (("typo", "lazy", "pinned"), "modelfile"),
        ((None, "typo", "pinned"), "manifest"),
        ((None, None, "typo"), "environment"),
        ((None, None, "Lazy"), "environment"),
    ],
)
def test_an_unknown_mode_gives_the_default_and_not_the_next_rung(
    rungs: tuple[str | None, str | None, str | None], source: str
) -> None:
    effective, (warning,) = _mode(*rungs)
    assert effective == Effective("eager", "default")
    assert f"weight_residency of the {source}" in warning
    assert "(modes: eager, lazy, pinned, lazy_then_pin_resident)" in warning
    assert "the default 'eager' is used" in warning


def test_every_option_has_its_own_rung() -> None:
    effective, warnings = resolve_loader(
        LoaderOptions(n_ctx=1024),
        LoaderOptions(n_ctx=64, num_parallel=3),
        {"weight_residency": "lazy", "n_ctx": 8, "num_parallel": 2},
        MODES,
        {**DEFAULTS, "n_threads": 0},
    )
    assert effective == {
        "weight_residency": Effective("lazy", "environment"),
        "n_ctx": Effective(1024, "modelfile"),
        "num_parallel": Effective(3, "manifest"),
        "n_threads": Effective(0, "default"),
    }
    assert warnings == []


def test_without_a_modelfile() -> None:
    effective, _ = resolve_loader(None, LoaderOptions(), {"n_ctx": 8}, MODES, DEFAULTS)
    assert effective["n_ctx"] == Effective(8, "environment")


@pytest.mark.parametrize("value", ["many", -1, 1 << 30])
def test_an_unusable_number(value: int | str) -> None:
    effective, warnings = resolve_loader(None, LoaderOptions(), {"n_ctx": value}, MODES, DEFAULTS)
    assert effective["n_ctx"] == Effective(0, "default")
    assert len(warnings) == 1
    assert warnings[0].startswith("n_ctx of the environment should be ")


def test_sampling_parameters() -> None:
    upper = Parameters(temperature=0.0, stop=("a",))
    lower = Parameters(temperature=1.0, top_k=5, stop=("b",))
    assert resolve_parameters(upper, lower) == Parameters(temperature=0.0, top_k=5, stop=("a",))
    assert resolve_parameters(None, lower) == lower
