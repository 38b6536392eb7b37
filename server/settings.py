"""The daemon's settings, read from CORRAL_* environment variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from manifests.manifest import MAX_N_CTX
from manifests.options import nearest
from manifests.precedence import OptionValue
from residency.modes import DEFAULT_MODE, UnknownMode, parse_mode
from server.durations import ALLOWED, parse_keep_alive

# Read by the build and the scripts, never by the daemon.
_OTHERS = frozenset({"CORRAL_CACHE"})
_OTHERS_PREFIX = "CORRAL_TEST_"
# Named by the contract for a later version; setting them must not look as if it worked.
_WITHOUT_EFFECT = ("CORRAL_RAM_BUDGET", "CORRAL_MEMORY_BUDGET")
_LOG_LEVELS = ("debug", "info", "warning", "error")


class SettingsError(ValueError):
    """A variable whose value cannot be used; names variable, value and what is allowed."""

    def __init__(self, variable: str, value: str, allowed: str) -> None:
        super().__init__(f"{variable}={value!r} cannot be used; allowed: {allowed}")


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 8080
    """0 lets the kernel choose."""
    home: Path = Path(".corral")
    """Holds blobs/ and manifests/."""
    weight_residency: str | None = None
    """The environment's rung of the precedence ladder, which knows the modes; None where it is
    not set."""
    context_length: int | None = None
    """As weight_residency, for loader.n_ctx."""
    num_parallel: int | None = None
    """As weight_residency, for loader.num_parallel."""
    # The three defaults are Ollama's: 5 minutes, 3 models where there is no GPU, 512 requests.
    keep_alive: float = 300.0
    """Seconds; negative is for ever."""
    max_loaded_models: int = 3
    max_queue: int = 512
    """Requests that wait in the daemon, all models together."""
    request_timeout: int = 0
    """Seconds from a request's arrival to its end; 0 is as long as it takes."""
    decode_timeout: int = 600
    """Seconds that a worker which runs requests may be silent; between its decodes it speaks
    every 5."""
    api_keys: tuple[str, ...] = ()
    """Empty: no key is asked for."""
    cors_origins: tuple[str, ...] = ()
    log_level: str = "info"

    def loader_environment(self) -> dict[str, OptionValue]:
        """The environment's rung of the precedence ladder: what is set, by loader option."""
        rung = {
            "weight_residency": self.weight_residency,
            "n_ctx": self.context_length,
            "num_parallel": self.num_parallel,
        }
        return {option: value for option, value in rung.items() if value is not None}

    @staticmethod
    def from_environ(environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
        """The settings and the warnings to log. Raises SettingsError."""
        given = {name: text for name, text in environ.items() if text.strip()}
        home = Path(environ.get("HOME", "/")) / ".corral"
        values: dict[str, Any] = {"home": home}
        for name, (field, parse) in _VARIABLES.items():
            if name in given:
                values[field] = parse(name, given[name].strip())
        settings = Settings(**values)
        return settings, _warnings(given) + _mode_warnings(settings.weight_residency)


def _warnings(given: Mapping[str, str]) -> list[str]:
    known = [*_VARIABLES, *_WITHOUT_EFFECT]
    warnings = [
        f"{name} has no effect in this version" for name in _WITHOUT_EFFECT if name in given
    ]
    for name in sorted(given):
        if not name.startswith("CORRAL_") or name in known or name in _OTHERS:
            continue
        if not name.startswith(_OTHERS_PREFIX):
            near = nearest(_bare(name), [_bare(each) for each in known])
            hint = f"; did you mean CORRAL_{near}?" if near else f"; known: {', '.join(known)}"
            warnings.append(f"{name} is not a setting and is ignored{hint}")
    return warnings


def _mode_warnings(mode: str | None) -> list[str]:
    """What a model that sets no mode of its own will meet, told before it does."""
    if mode is None:
        return []
    try:
        parse_mode(mode)
    except UnknownMode as error:
        what = f"{error}; models that set none get {DEFAULT_MODE.value!r}"
        return [f"CORRAL_WEIGHT_RESIDENCY: {what}"]
    return []


def _bare(name: str) -> str:
    """Without what all have in common."""
    return name.removeprefix("CORRAL_")


def _text(_name: str, text: str) -> str:
    return text


def _host(name: str, text: str) -> str:
    """No URL and no port, which other servers' variables of this kind take."""
    try:
        ip_address(text)
    except ValueError:
        if len(text) > 253 or not re.fullmatch(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?", text):
            allowed = 'a name or an address, such as "127.0.0.1" or "::1"; the port is CORRAL_PORT'
            raise SettingsError(name, text, allowed) from None
    return text


def _path(_name: str, text: str) -> Path:
    return Path(text).expanduser().absolute()


def _whole(low: int, high: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        # isdecimal admits digits only: no sign, no underscore; 9 digits bound the work.
        if not text.isdecimal() or len(text) > 9 or not low <= int(text) <= high:
            raise SettingsError(name, text, f"a whole number from {low} to {high}")
        return int(text)

    return parse


def _keep_alive(name: str, text: str) -> float:
    try:
        return parse_keep_alive(text)
    except ValueError as error:
        raise SettingsError(name, text, ALLOWED) from error


def _log_level(name: str, text: str) -> str:
    if text.lower() not in _LOG_LEVELS:
        raise SettingsError(name, text, ", ".join(_LOG_LEVELS))
    return text.lower()


def _keys(name: str, text: str) -> tuple[str, ...]:
    keys = tuple(key.strip() for key in text.split(",") if key.strip())
    if not keys or not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise SettingsError(
            name, "(not shown)", "keys of printable ASCII without spaces, separated by commas"
        )
    return keys


def _origins(name: str, text: str) -> tuple[str, ...]:
    origins = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    for origin in origins:
        if origin != "*" and not _is_origin(origin):
            raise SettingsError(name, text, 'origins such as "http://localhost:3000", or "*"')
    return origins


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # To ask for the port checks it.
        rest = (parts.path, parts.query, parts.fragment, parts.port and "")
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not any(rest)


_VARIABLES: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "CORRAL_HOST": ("host", _host),
    "CORRAL_PORT": ("port", _whole(0, 65535)),
    "CORRAL_HOME": ("home", _path),
    "CORRAL_WEIGHT_RESIDENCY": ("weight_residency", _text),
    "CORRAL_KEEP_ALIVE": ("keep_alive", _keep_alive),
    "CORRAL_MAX_LOADED_MODELS": ("max_loaded_models", _whole(1, 1024)),
    "CORRAL_MAX_QUEUE": ("max_queue", _whole(1, 1_000_000)),
    "CORRAL_REQUEST_TIMEOUT": ("request_timeout", _whole(0, 86_400)),
    "CORRAL_DECODE_TIMEOUT": ("decode_timeout", _whole(10, 86_400)),
    "CORRAL_NUM_PARALLEL": ("num_parallel", _whole(1, 256)),
    "CORRAL_CONTEXT_LENGTH": ("context_length", _whole(0, MAX_N_CTX)),
    "CORRAL_API_KEYS": ("api_keys", _keys),
    "CORRAL_CORS_ORIGINS": ("cors_origins", _origins),
    "CORRAL_LOG_LEVEL": ("log_level", _log_level),
}
