"""The marked ratios as a small SVG: right of the line is better for corral, in every row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from bench.summary import Line

_WIDTH, _LABELS, _BAR, _GAP, _TOP, _RIGHT = 720, 300, 12, 10, 52, 60
_COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1")
# Times as good, at the right edge. A longer bar is cut off, lest it flatten the others.
_LEAST_SCALE, _MOST_SCALE = 1.5, 2.5


def picture(lines: Sequence[Line], title: str) -> str:
    """Bars of how many times as good ours is; a tick where the mark is."""
    marked = [line for line in lines if line.row.mark is not None and line.ratios]
    rivals = [ratio.rival for ratio in marked[0].ratios] if marked else []
    row_height = len(rivals) * _BAR + _GAP
    height = _TOP + len(marked) * row_height + _GAP
    goods = [_good(line, ratio.median) for line in marked for ratio in line.ratios]
    scale = min(max([*goods, _LEAST_SCALE]), _MOST_SCALE)
    unit = (_WIDTH - _LABELS - _RIGHT) / scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="18" font-size="13" font-weight="bold">{escape(title)}</text>',
        *_legend(rivals),
    ]
    for number, line in enumerate(marked):
        parts += _row(line, _TOP + number * row_height, unit)
    one = _LABELS + unit
    parts.append(f'<path d="M{one:.1f} {_TOP - 6}V{height - 4}" stroke="#444"/></svg>')
    return "\n".join(parts) + "\n"


def _good(line: Line, ratio: float) -> float:
    return ratio if line.row.metric.more_is_better else 1 / ratio


def _legend(rivals: Sequence[str]) -> Iterator[str]:
    x = 10.0
    for rival, colour in zip(rivals, _colours(len(rivals)), strict=True):
        yield f'<rect x="{x:.0f}" y="28" width="10" height="10" fill="{colour}"/>'
        text = f"times as good as {rival}"
        yield f'<text x="{x + 14:.0f}" y="37">{escape(text)}</text>'
        x += 40 + 6 * len(text)
    yield f'<text x="{x:.0f}" y="37" fill="#c53030">| mark</text>'


def _row(line: Line, y: float, unit: float) -> Iterator[str]:
    label = escape(f"{line.scenario}: {line.row.metric.label}")
    yield f'<text x="{_LABELS - 8}" y="{y + 10}" text-anchor="end">{label}</text>'
    for number, ratio in enumerate(line.ratios):
        good = _good(line, ratio.median)
        top, width = y + number * _BAR, min(good, _MOST_SCALE) * unit
        colour = _colours(len(line.ratios))[number]
        yield (
            f'<rect x="{_LABELS}" y="{top}" width="{width:.1f}" height="{_BAR - 2}" '
            f'fill="{colour}"/>'
        )
        cut = " »" if good > _MOST_SCALE else ""
        yield f'<text x="{_LABELS + width + 5:.1f}" y="{top + 9}">{good:.2f}{cut}</text>'
    assert line.row.mark is not None
    mark = _LABELS + _good(line, line.row.mark) * unit
    bottom = y + len(line.ratios) * _BAR
    yield f'<path d="M{mark:.1f} {y - 3}V{bottom + 1}" stroke="#c53030" stroke-width="2"/>'


def _colours(n: int) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(n)]
