"""The summary as Markdown tables that also read well in a terminal, with what was refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bench.residency.figures import Figures
from bench.residency.summary import Column, Row, asymptote, until_warm, warm_after_ms
from bench.table import aligned


def _mb(of: Callable[[Figures], int | None]) -> Callable[[Figures], float | None]:
    def megabytes(figures: Figures) -> float | None:
        n_bytes = of(figures)
        return None if n_bytes is None else n_bytes / 1e6

    return megabytes


MEMORY = (
    Column("load ms", lambda f: f.load_ms),
    Column("read MB", _mb(lambda f: f.load.read_bytes)),
    Column("RSS load", _mb(lambda f: f.at_load.rss)),
    Column("RSS infer", _mb(lambda f: f.rss_infer)),
    Column("RSS idle", _mb(lambda f: f.idle.rss)),
    Column("resident load", _mb(lambda f: f.at_load.resident)),
    Column("resident idle", _mb(lambda f: f.idle.resident)),
    Column("locked", _mb(lambda f: f.idle.locked)),
    Column("huge", _mb(lambda f: f.idle.huge)),
    Column("page cache", _mb(lambda f: f.idle.page_cache)),
)
REQUESTS = (
    Column("prefill ms", lambda f: f.prefill_ms),
    Column("generation ms", lambda f: f.generation_ms),
    Column("tok/s", lambda f: f.tokens_per_second),
    Column("major faults", lambda f: f.first.major_faults),
    Column("read MB", _mb(lambda f: f.first.read_bytes)),
    Column("request ms", lambda f: f.request_ms[0]),
    Column("warm request ms", lambda f: asymptote(f.request_ms)),
    Column("requests until warm", lambda f: until_warm(f.request_ms)),
    Column("kept MB", _mb(lambda f: f.kept)),
    Column("warm after ms", warm_after_ms),
)


def tables(rows: Sequence[Row]) -> str:
    return f"{_table(rows, MEMORY)}\n\n{_table(rows, REQUESTS)}"


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    head = ["mode", "file", *(column.label for column in columns)]
    body = [
        [f"`{row.mode}`", str(row.cache), *(number(row.median(column)) for column in columns)]
        for row in rows
    ]
    return aligned([head, *body])


def number(value: float | None) -> str:
    """Three digits, all of them before the point if there are more."""
    if value is None:
        return "?"
    if math.isinf(value):
        return "never"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def refusals(rows: Sequence[Row]) -> list[str]:
    """What became of a mode that did not serve in every round."""
    return [
        f"{row.mode}, {row.cache}: no figures in {len(row.errors)} of "
        f"{len(row.errors) + len(row.figures)} rounds: {row.errors[0]}"
        for row in rows
        if row.errors
    ]
