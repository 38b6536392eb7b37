"""The three pictures: how long a start takes, what is in RAM, how requests become warm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from bench.residency.figures import Cache
from bench.residency.summary import Column, Row, start_ms
from bench.residency.svg import COLOURS, TOP, WIDTH, document, legend, line, rect, text, ticks
from bench.residency.table import MEMORY, number

_LABELS, _RIGHT, _BAR, _GAP = 190, 60, 12, 10
_PLOT_HEIGHT, _AXIS, _BELOW = 280, 50, 44
# The slowest round is shown up to so many times the longest bar.
_ROOM = 1.25
_GRID, _WHISKER = "#dddddd", "#444444"
_PHASES = (
    Column("load", lambda f: f.load_ms),
    Column("prefill", lambda f: f.prefill_ms),
    Column("generation", lambda f: f.generation_ms),
)
_SIZES = tuple(
    column
    for column in MEMORY
    if column.label in ("RSS load", "RSS infer", "RSS idle", "resident idle", "locked")
)


def pictures(rows: Sequence[Row], title: str) -> Mapping[str, str]:
    """SVG by the last part of its file's name."""
    served = [row for row in rows if row.figures]
    cold = [row for row in served if row.cache is Cache.COLD]
    return {
        "start": _start(served, f"{title}: load and first request, ms"),
        "memory": _memory(cold, f"{title}: what is in RAM after a cold start, MB"),
        "requests": _requests(cold, f"{title}: each request after a cold start, ms"),
    }


def _start(rows: Sequence[Row], title: str) -> str:
    """Stacked medians of the phases; the line goes from the fastest round to the slowest. One
    that would flatten the others is cut off."""
    totals = [[start_ms(figures) for figures in row.figures] for row in rows]
    middles = [sum(row.median(phase) or 0 for phase in _PHASES) for row in rows]
    longest = _ROOM * max(middles, default=0)
    unit = _unit([longest])
    parts = list(legend([phase.label for phase in _PHASES]))
    for place, (row, total, middle) in enumerate(zip(rows, totals, middles, strict=True)):
        y, x = TOP + place * (_BAR + _GAP), float(_LABELS)
        parts.append(text(_LABELS - 8, y + 10, f"{row.mode}, {row.cache}", "end"))
        for colour, phase in enumerate(_PHASES):
            width = (row.median(phase) or 0) * unit
            parts.append(rect(x, y, width, _BAR, colour))
            x += width
        end = _LABELS + min(max(total), longest) * unit
        parts.append(line([(_LABELS + min(total) * unit, y + 6), (end, y + 6)], _WHISKER))
        cut = "» " if max(total) > longest else ""
        parts.append(text(max(x, end) + 5, y + 10, cut + number(middle)))
    return document(title, TOP + len(rows) * (_BAR + _GAP) + _GAP, parts)


def _memory(rows: Sequence[Row], title: str) -> str:
    values = [[row.median(size) for size in _SIZES] for row in rows]
    unit = _unit(value or 0 for each in values for value in each)
    parts = list(legend([size.label for size in _SIZES]))
    y = float(TOP)
    for row, each in zip(rows, values, strict=True):
        parts.append(text(_LABELS - 8, y + 10, row.mode, "end"))
        for colour, value in enumerate(each):
            width = (value or 0) * unit
            parts.append(rect(_LABELS, y, width, _BAR - 2, colour))
            parts.append(text(_LABELS + width + 5, y + 9, number(value)))
            y += _BAR
        y += _GAP
    return document(title, y + _GAP, parts)


def _unit(values: Iterable[float]) -> float:
    """Width of one in bars that have to hold them all."""
    return (WIDTH - _LABELS - _RIGHT) / (max(values, default=0) or 1)


def _requests(rows: Sequence[Row], title: str) -> str:
    """A line a mode, over the number of the request; the scale is logarithmic."""
    curves = [row.request_ms() for row in rows]
    times = [ms for curve in curves for ms in curve] or [1.0]
    marks = ticks(min(times), max(times))
    low, high = math.log(marks[0]), math.log(marks[-1])
    bottom = TOP + _PLOT_HEIGHT

    def y_of(ms: float) -> float:
        return bottom - _PLOT_HEIGHT * (math.log(ms) - low) / ((high - low) or 1)

    n_requests = max(map(len, curves), default=1)
    step = (WIDTH - _AXIS - 20) / max(n_requests - 1, 1)
    parts = list(legend([row.mode for row in rows]))
    for mark in marks:
        parts.append(line([(_AXIS, y_of(mark)), (WIDTH - 20, y_of(mark))], _GRID))
        parts.append(text(_AXIS - 6, y_of(mark) + 4, number(mark), "end"))
    for place in range(n_requests):
        parts.append(text(_AXIS + place * step, bottom + 16, str(place + 1), "middle"))
    parts.append(text(WIDTH / 2, bottom + 34, "request", "middle"))
    for colour, curve in enumerate(curves):
        points = [(_AXIS + place * step, y_of(ms)) for place, ms in enumerate(curve)]
        parts.append(line(points, COLOURS[colour % len(COLOURS)], 2))
    return document(title, bottom + _BELOW, parts)
