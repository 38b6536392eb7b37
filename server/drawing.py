"""How the command line draws the map of a model's bytes: a bar for each class in each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from server.tables import size, table

COLUMNS = 80
_GAP = 3  # of server.tables.table
_WIDEST_BAR = 32


@dataclass(frozen=True)
class Signs:
    locked: str
    touched: str
    resident: str
    absent: str
    device: str = "D"
    unknown: str = "?"


PLAIN = Signs("#", "=", "-", ".")
SHADED = Signs("█", "▓", "░", "·")


def draw(cells: Sequence[Mapping[str, Any]], signs: Signs) -> str:
    """The map of /api/residency/{model}, at most COLUMNS wide: first what belongs to no layer,
    then a row for each layer, then what the signs mean."""
    outside = [cell for cell in cells if cell["layer"] is None]
    inside = [cell for cell in cells if cell["layer"] is not None]
    parts = [_outside(outside, signs)] if outside else []
    parts += [_layers(inside, signs)] if inside else []
    return "\n\n".join([*parts, _legend(signs)])


def _outside(cells: Sequence[Mapping[str, Any]], signs: Signs) -> str:
    rows = [[cell["class"], size(cell["bytes"]), _bar(cell, _WIDEST_BAR, signs)] for cell in cells]
    return table(["NO LAYER", "SIZE", "IN RAM"], rows)


def _layers(cells: Sequence[Mapping[str, Any]], signs: Signs) -> str:
    at = {(cell["layer"], cell["class"]): cell for cell in cells}
    kinds = list(dict.fromkeys(cell["class"] for cell in cells))
    layers = sorted({cell["layer"] for cell in cells})
    sizes = [size(sum(c["bytes"] for c in cells if c["layer"] == layer)) for layer in layers]
    fixed = max(len("LAYER"), len(str(layers[-1]))) + max(map(len, sizes)) + _GAP
    width = _bar_width(kinds, COLUMNS - fixed)
    rows = [
        [str(layer), total, *(_bar(at.get((layer, kind)), width, signs) for kind in kinds)]
        for layer, total in zip(layers, sizes, strict=True)
    ]
    return table(["LAYER", "SIZE", *(kind.upper() for kind in kinds)], rows)


def _bar_width(kinds: Sequence[str], columns: int) -> int:
    """The widest that lets a column for each class fit, whose name may be wider."""
    for width in range(_WIDEST_BAR, 1, -1):
        if sum(max(width, len(kind)) + _GAP for kind in kinds) <= columns:
            return width
    return 1


def _bar(cell: Mapping[str, Any] | None, width: int, signs: Signs) -> str:
    """One cell's bytes by what is true of them, the strongest first; blank where there is none."""
    if cell is None:
        return ""
    device = cell["backing"]["device"] if cell["backing"] else 0
    reach = [0]
    for key in ("locked_bytes", "touched_bytes", "resident_bytes"):
        reach.append(max(reach[-1], cell[key] or 0))
    unknown = cell["resident_bytes"] is None
    in_ram = [_share(count, cell["bytes"], width) for count in reach]
    on_device = min(_share(device, cell["bytes"], width), width - in_ram[-1])
    drawn = "".join(
        sign * (end - start)
        for sign, (start, end) in zip(
            (signs.locked, signs.touched, signs.resident), pairwise(in_ram), strict=True
        )
    )
    rest = signs.unknown if unknown else signs.absent
    return drawn + signs.device * on_device + rest * (width - in_ram[-1] - on_device)


def _share(count: int, whole: int, width: int) -> int:
    """Of width; full is all and empty is nothing, however little is missing."""
    if count <= 0 or whole <= 0:
        return 0
    return width if count >= whole else min(max(1, round(count / whole * width)), width - 1)


def _legend(signs: Signs) -> str:
    return (
        f"{signs.locked} locked   {signs.touched} touched   {signs.resident} in RAM   "
        f"{signs.absent} not in RAM   {signs.device} on a device   {signs.unknown} unknown"
    )
