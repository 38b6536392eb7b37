"""Names and values of the loader options and sampling parameters, as people write them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from manifests.errors import InvalidValue, UnknownKey
from manifests.manifest import LoaderOptions, Parameters, explain

# Ollama's names for what llama.cpp, and so corral, calls otherwise.
ALIASES = {
    "num_ctx": "n_ctx",
    "num_batch": "n_batch",
    "num_thread": "n_threads",
    "num_gpu": "n_gpu_layers",
}
# What other servers have switches for, and a residency mode decides here.
_REPLACED = {"use_mmap": "weight_residency", "use_mlock": "weight_residency"}

_TEXT_OPTIONS = frozenset({"weight_residency", "pin", "stop"})
# Bounded: int() takes quadratic time over digits.
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?")

Options = type[LoaderOptions] | type[Parameters]


def nearest(word: str, known: Collection[str]) -> str | None:
    """The known word that was probably meant."""
    meant = ALIASES.get(word) or _REPLACED.get(word)
    if meant in known:
        return meant
    found = difflib.get_close_matches(word[:100], known, n=1, cutoff=0.5)
    return found[0] if found else None


def from_text(option: str, text: str) -> bool | int | float | str:
    """The typed value of an option that is written without quotes: a number or boolean where
    it looks like one."""
    if option in _TEXT_OPTIONS:
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def check_value(model: Options, option: str, value: object, prefix: str = "") -> None:
    """Raises InvalidValue unless the option takes the value."""
    try:
        model.model_validate({option: value})
    except ValidationError as error:
        raise InvalidValue(prefix + option, explain(error)) from None


def check_keys(model: Options, keys: Collection[str], prefix: str = "") -> None:
    """Raises UnknownKey for the first that is no option of the model."""
    known = list(model.model_fields)
    for key in keys:
        if key not in known:
            near = nearest(key, known)
            raise UnknownKey(prefix + key, near and prefix + near, [prefix + k for k in known])


def check_mode(key: str, mode: str | None, modes: Collection[str]) -> None:
    """Raises InvalidValue with the list of modes unless the mode is unset or one of them."""
    if mode is not None and mode not in modes:
        near = nearest(mode, modes)
        hint = f", did you mean {near!r}?" if near else ";"
        raise InvalidValue(key, f"unknown mode {mode!r}{hint} modes: {', '.join(modes)}")


def set_options(options: LoaderOptions | Parameters) -> Mapping[str, Any]:
    """The options that are set, by name."""
    return options.model_dump(exclude_none=True)
