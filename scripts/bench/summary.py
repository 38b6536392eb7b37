"""From the visits to what is compared: medians over the rounds, and ratios within a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.plan import Row, Scenario
from bench.rounds import Measured, Visit


@dataclass(frozen=True)
class Ratio:
    """Ours by theirs, in each round and then the median."""

    rival: str
    theirs: float
    """Median over the rounds."""
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    scenario: str
    row: Row
    ours: float
    """Median over the rounds."""
    ratios: tuple[Ratio, ...]


def summarise(
    scenarios: Sequence[Scenario], names: Sequence[str], visits: Sequence[Visit]
) -> list[Line]:
    """The first of the names is ours."""
    measured = [each for visit in visits for each in visit.measured]
    return [
        _line(scenario.name, row, names, [m for m in measured if m.scenario == scenario.name])
        for scenario in scenarios
        for row in scenario.rows
    ]


def _line(scenario: str, row: Row, names: Sequence[str], measured: Sequence[Measured]) -> Line:
    values: dict[str, list[float]] = {name: [] for name in names}
    for each in sorted(measured, key=lambda m: m.round):
        values[each.contender].append(getattr(each.figures, row.metric.field))
    ours, *others = (values[name] for name in names)
    ratios = [_ratio(name, ours, theirs) for name, theirs in zip(names[1:], others, strict=True)]
    return Line(scenario, row, median(ours), tuple(ratios))


def _ratio(rival: str, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Ratio(rival, median(theirs), median(ratios), min(ratios), max(ratios))


def meets(row: Row, ratio: float) -> bool:
    """Whether the ratio is on the right side of the row's mark. Only for a row with one."""
    assert row.mark is not None
    return ratio >= row.mark if row.metric.more_is_better else ratio <= row.mark


def odd_requests(visits: Sequence[Visit]) -> list[str]:
    """What makes figures not comparable: prompts counted otherwise, or reused unasked."""
    notes = []
    rounds: dict[tuple[int, str], set[float]] = {}
    for each in (m for visit in visits for m in visit.measured):
        rounds.setdefault((each.round, each.scenario), set()).add(each.figures.prompt_tokens)
        cached = each.figures.cached_tokens
        if not each.scenario.startswith("shared") and cached > each.figures.prompt_tokens * 0.1:
            notes.append(f"{each.contender} reused {cached:.0f} tokens a prompt in {each.scenario}")
    for (round_, scenario), counts in rounds.items():
        if len(counts) > 1:
            counted = " and ".join(f"{count:g}" for count in sorted(counts))
            notes.append(f"round {round_ + 1}, {scenario}: prompts of {counted} tokens")
    return notes
