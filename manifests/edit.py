"""Merges an edit into a manifest: strict about what it is given, and keeps all the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from manifests.manifest import LoaderOptions, Manifest, Parameters
from manifests.options import check_keys, check_mode, check_value, set_options
from manifests.templates import refuse_go_template


class Unset(Enum):
    """The type of UNSET, which unlike None leaves a field as it is."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET

_Options = TypeVar("_Options", LoaderOptions, Parameters)


def apply_edit(
    manifest: Manifest,
    loader: Mapping[str, Any] | None,
    parameters: Mapping[str, Any] | None,
    system: str | Unset | None = UNSET,
    template: str | Unset | None = UNSET,
    *,
    modes: Collection[str],
) -> tuple[Manifest, list[str]]:
    """The manifest with the edit merged in, and the keys whose stored value changed, such as
    `loader.n_ctx`. None as a value removes the key. Raises UnknownKey, InvalidValue."""
    if loader and "weight_residency" in loader:
        mode = loader["weight_residency"]
        check_value(LoaderOptions, "weight_residency", mode, "loader.")
        check_mode("loader.weight_residency", mode, modes)
    if isinstance(template, str):
        refuse_go_template(template)
    update: dict[str, Any] = {
        "loader": _merged(manifest.loader, loader or {}, "loader."),
        "parameters": _merged(manifest.parameters, parameters or {}, "parameters."),
    }
    changed = _changed(manifest.loader, update["loader"], "loader.")
    changed += _changed(manifest.parameters, update["parameters"], "parameters.")
    for key, value in (("system", system), ("template", template)):
        if not isinstance(value, Unset) and value != getattr(manifest, key):
            update[key] = value
            changed.append(key)
    return manifest.model_copy(update=update), changed


def shadowed(manifest: Manifest, key: str) -> bool:
    """Whether the Modelfile sets what key (as apply_edit names it) would set."""
    section, _, option = key.partition(".")
    if manifest.modelfile is None or not option:
        return False
    layer = manifest.modelfile
    return option in set_options(layer.loader if section == "loader" else layer.parameters)


def _merged(options: _Options, edit: Mapping[str, Any], prefix: str) -> _Options:
    model = type(options)
    check_keys(model, edit, prefix)
    for option, value in edit.items():
        check_value(model, option, value, prefix)
    return model.model_validate({**set_options(options), **edit})


def _changed(before: _Options, after: _Options, prefix: str) -> list[str]:
    return [
        prefix + option
        for option in type(before).model_fields
        if getattr(before, option) != getattr(after, option)
    ]
