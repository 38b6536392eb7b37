"""keep_alive as Ollama writes it: seconds, or a duration such as "5m" or "1h30m"."""

from __future__ import annotations

import math
import re

_UNIT_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
# A century is for ever, and still a date that clocks and calendars can hold.
_FAR_SECONDS = 100 * 365 * 86400.0
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
ALLOWED = 'seconds, or a duration such as "5m" or "1h30m"; negative is for ever, 0 unloads now'


def parse_keep_alive(value: str | float) -> float:
    """Seconds; negative is for ever. Raises ValueError saying what is allowed."""
    try:
        seconds = _parse_text(value.strip()) if isinstance(value, str) else float(value)
    except OverflowError:  # a whole number past all floats
        seconds = math.inf
    if not math.isfinite(seconds):
        raise ValueError(f"not a finite number of seconds; allowed: {ALLOWED}")
    return seconds if seconds <= _FAR_SECONDS else -1.0


def _parse_text(text: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    sign = -1.0 if text.startswith("-") else 1.0
    body = text[1:] if text[:1] in ("+", "-") else text
    parts = list(_PART.finditer(body))
    if not parts or "".join(part.group() for part in parts) != body:
        raise ValueError(f"{text[:100]!r} is no duration; allowed: {ALLOWED}")
    return sign * sum(float(part[1]) * _UNIT_SECONDS[part[2]] for part in parts)
