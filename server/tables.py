"""How the command line writes sizes, times and tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

_UNITS = ("B", "KB", "MB", "GB", "TB")


def size(count: int | None) -> str:
    """Bytes in powers of 1000, as disks and Ollama count; "?" for unknown."""
    if count is None:
        return "?"
    value = float(count)
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def distance(moment: str, now: datetime) -> str:
    """An ISO time as "5 minutes ago", "in 5 minutes", or "never" a lifetime away."""
    seconds = (datetime.fromisoformat(moment) - now).total_seconds()
    if seconds > 100 * 365 * 86400:
        return "never"
    amount = _amount(abs(seconds))
    return f"in {amount}" if seconds > 0 else f"{amount} ago"


def _amount(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count = int(seconds // length)
        if count:
            return f"{count} {unit}" + "s" * (count != 1)
    return "0 seconds"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, three blanks apart."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
