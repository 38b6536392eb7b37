"""The summary as a Markdown table that also reads well in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from bench.summary import Line, Ratio, meets


def table(lines: Sequence[Line]) -> str:
    rivals = [ratio.rival for ratio in lines[0].ratios]
    head = [
        "scenario",
        "figure",
        "corral",
        *(word for r in rivals for word in (r, "ratio (range)")),
    ]
    if rivals:
        head.append("mark")
    return aligned([head, *(_cells(line) for line in lines)])


def _cells(line: Line) -> list[str]:
    metric = line.row.metric
    cells = [line.scenario, f"{metric.label}, {metric.unit}", _number(line.ours)]
    for ratio in line.ratios:
        cells += [
            _number(ratio.theirs),
            f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
        ]
    return [*cells, _mark(line, line.ratios[0])] if line.ratios else cells


def _mark(line: Line, ratio: Ratio) -> str:
    if line.row.mark is None:
        return ""
    side = "≥" if line.row.metric.more_is_better else "≤"
    met = "met" if meets(line.row, ratio.median) else "missed"
    return f"{side} {line.row.mark:.2f} {met}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    rule = ["-" * width for width in widths]
    return "\n".join(f"| {' | '.join(row)} |" for row in (padded[0], rule, *padded[1:]))
