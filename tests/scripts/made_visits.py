"""Visits of bench_residency with figures that are easy to reckon with."""

from __future__ import annotations

from bench.residency.figures import Cache, Cost, Figures, Moment, Visit

WARM_MS = (100.0,) * 5


def moment(rss: int, *, locked: int | None = 0) -> Moment:
    return Moment(rss=rss, huge=0, resident=rss // 2, locked=locked, page_cache=rss // 2)


def figures(
    load_ms: float = 10, early_ms: tuple[float, ...] = (300, 104), locked: int | None = 0
) -> Figures:
    return Figures(
        cached_before=0,
        kept=0,
        load_ms=load_ms,
        load=Cost(1, 4_000_000),
        at_load=moment(80_000_000),
        first=Cost(2_000, 94_200_000),
        prefill_ms=200,
        generation_ms=90,
        tokens_per_second=150,
        rss_infer=181_000_000,
        request_ms=(*early_ms, *WARM_MS),
        request_at_ms=tuple(20.0 + 1000 * n for n in range(len(early_ms) + len(WARM_MS))),
        prompt_tokens=(64,) * 7,
        idle=moment(180_000_000, locked=locked),
    )


def visit(
    round_: int, mode: str, served: Figures | None, cache: Cache = Cache.COLD, error: str = ""
) -> Visit:
    return Visit(round_, mode, cache, served, error)
