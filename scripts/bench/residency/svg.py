"""The parts that the pictures are drawn of: SVG as text, no library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

WIDTH = 760
TOP = 58
"""Below title and legend."""
# Okabe and Ito's colours, which most colour-blind readers tell apart.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")


def document(title: str, height: float, parts: Iterable[str]) -> str:
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            'font-family="sans-serif" font-size="11">',
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>',
            f'<text x="10" y="18" font-size="13" font-weight="bold">{escape(title)}</text>',
            *parts,
            "</svg>\n",
        )
    )


def legend(labels: Sequence[str]) -> Iterator[str]:
    """In the order of COLOURS."""
    x = 10.0
    for number, label in enumerate(labels):
        yield rect(x, 30, 10, 10, number)
        yield text(x + 14, 39, label)
        x += 36 + 6.2 * len(label)


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, colour: int) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" '
        f'fill="{COLOURS[colour % len(COLOURS)]}"/>'
    )


def line(points: Iterable[tuple[float, float]], colour: str, width: float = 1) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten from the last at or below low to the first at or above
    high; both are above 0."""
    steps = [factor * 10.0**power for power in range(-3, 10) for factor in (1, 2, 5)]
    below = max(step for step in steps if step <= low)
    above = min(step for step in steps if step >= high)
    return [step for step in steps if below <= step <= above]
