"""The ladder that decides each option: Modelfile, manifest, environment, default; top wins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from manifests.errors import InvalidValue
from manifests.manifest import LoaderOptions, Parameters
from manifests.options import check_value, set_options

OptionValue = int | str | tuple[str, ...]
Source = Literal["modelfile", "manifest", "environment", "default"]


@dataclass(frozen=True)
class Effective:
    """A value in force and the rung it came from."""

    value: OptionValue
    source: Source


def resolve_loader(
    modelfile: LoaderOptions | None,
    manifest: LoaderOptions,
    environment: Mapping[str, OptionValue],
    modes: Collection[str],
    defaults: Mapping[str, OptionValue],
) -> tuple[dict[str, Effective], list[str]]:
    """Each option of defaults as it is in force, and warnings.

    environment holds the value of each variable that is set, by option. An unusable value on
    the rung that wins gives the default, not the next rung: what a lower rung says was meant to
    be overruled, and may be the very thing its operator wanted away from.
    """
    rungs: list[tuple[Source, Mapping[str, Any]]] = [
        ("modelfile", set_options(modelfile) if modelfile else {}),
        ("manifest", set_options(manifest)),
        ("environment", environment),
    ]
    effective: dict[str, Effective] = {}
    warnings: list[str] = []
    for option, default in defaults.items():
        effective[option] = Effective(default, "default")
        lowest: tuple[Source, Any] = ("default", default)
        source, value = next(
            ((source, values[option]) for source, values in rungs if option in values), lowest
        )
        fault = _fault(option, value, modes)
        if fault is None:
            effective[option] = Effective(value, source)
        else:
            warnings.append(f"{option} of the {source} {fault}; the default {default!r} is used")
    return effective, warnings


def _fault(option: str, value: object, modes: Collection[str]) -> str | None:
    if option == "weight_residency" and value not in modes:
        return f"is the unknown mode {value!r} (modes: {', '.join(modes)})"
    try:
        check_value(LoaderOptions, option, value)
    except InvalidValue as error:
        return error.why
    return None


def resolve_parameters(modelfile: Parameters | None, manifest: Parameters) -> Parameters:
    """The sampling parameters in force."""
    upper = set_options(modelfile) if modelfile else {}
    return Parameters.model_validate({**set_options(manifest), **upper})
