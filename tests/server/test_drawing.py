"""The map in a terminal: what each sign counts, and that it fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from server.drawing import COLUMNS, PLAIN, SHADED, draw

MB = 1_000_000


def cell(
    layer: int | None,
    kind: str,
    size: int,
    in_ram: tuple[int | None, int | None, int | None] = (0, 0, 0),
    device: int = 0,
) -> dict[str, Any]:
    """in_ram: of size locked, touched and resident."""
    locked, touched, resident = in_ram
    return {
        "layer": layer,
        "class": kind,
        "bytes": size,
        "backing": {"file": size - device, "anonymous": 0, "device": device},
        "resident_bytes": resident,
        "touched_bytes": touched,
        "locked_bytes": locked,
    }


def bar(drawn: Mapping[str, Any]) -> str:
    """Of a cell in no layer, which has 32 signs."""
    return draw([drawn], PLAIN).splitlines()[1].split()[-1]


@pytest.mark.parametrize(
    ("drawn", "signs"),
    [
        (cell(None, "embd", 32, (8, 16, 24)), "########========--------........"),
        (cell(None, "embd", 32, (32, 32, 32)), "#" * 32),
        (cell(None, "embd", 32), "." * 32),
        # However little is there, or missing, shows.
        (cell(None, "embd", 32_000, (0, 1, 1)), "=" + "." * 31),
        (cell(None, "embd", 32_000, (31_999, 31_999, 32_000)), "#" * 31 + "-"),
        (cell(None, "embd", 32, (None, None, None)), "?" * 32),
        (cell(None, "embd", 32, (0, 16, None)), "=" * 16 + "?" * 16),
        (cell(None, "embd", 32, (None, None, 16)), "-" * 16 + "." * 16),
        (cell(None, "embd", 32, (0, 8, 8), device=16), "=" * 8 + "D" * 16 + "." * 8),
        ({**cell(None, "embd", 32, (None, None, None)), "backing": None}, "?" * 32),
    ],
)
def test_a_bar_shows_the_strongest_that_is_known_of_each_byte(
    drawn: Mapping[str, Any], signs: str
) -> None:
    assert bar(drawn) == signs


def test_a_row_for_each_layer_and_a_column_for_each_class_that_layers_have() -> None:
    cells = [
        cell(None, "embd", 10 * MB),
        cell(0, "attn", MB, (0, 0, MB)),
        cell(0, "ffn", 2 * MB),
        cell(11, "attn", MB),
        cell(11, "expert", 4 * MB),
    ]
    lines = draw(cells, PLAIN).splitlines()
    assert lines[0].split() == ["NO", "LAYER", "SIZE", "IN", "RAM"]
    assert lines[3].split() == ["LAYER", "SIZE", "ATTN", "FFN", "EXPERT"]
    layer, size, unit, attn, ffn = lines[4].split()
    assert (layer, size, unit) == ("0", "3.0", "MB")
    assert set(attn) == {"-"} and set(ffn) == {"."} and len(attn) == len(ffn)
    # A layer without a class has a blank there.
    at_ffn, at_expert = lines[3].index("FFN"), lines[3].index("EXPERT")
    assert not lines[5][at_ffn:at_expert].strip() and set(lines[5][at_expert:]) == {"."}
    assert "# locked" in lines[-1]


@pytest.mark.parametrize("n_classes", [1, 3, 8])
@pytest.mark.parametrize("signs", [PLAIN, SHADED])
def test_it_fits_the_terminal(n_classes: int, signs: Any) -> None:
    kinds = ["attn", "norm", "router", "ffn", "expert", "ssm", "rope", "other"][:n_classes]
    cells = [cell(layer, kind, 123 * MB, (1, 2, 3)) for layer in range(128) for kind in kinds]
    text = draw([cell(None, "output", 123 * MB), *cells], signs)
    assert max(map(len, text.splitlines())) <= COLUMNS


def test_plain_is_ascii_alone() -> None:
    assert draw([cell(None, "embd", 32, (8, 16, 24))], PLAIN).isascii()
