"""What bench_serving makes of the rounds: medians, ratios, the table and the picture."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from bench.picture import picture
from bench.plan import DECODE, FULL, QUICK, TTFT, Figures, Row, Wave
from bench.rounds import Measured, Visit
from bench.summary import Line, meets, odd_requests, summarise
from bench.table import table

ROWS = (Row(DECODE, 1.0), Row(TTFT, 1.05))
SCENARIO = Wave("one & only", ROWS, 1, 8, 8)
NAMES = ("corral", "a", "b <x>")


def visit(
    round_: int, name: str, decode: float, ttft: float, *, prompt: float = 8, cached: float = 0
) -> Visit:
    figures = Figures(decode, decode, ttft, 1, 1, prompt, cached)
    return Visit((Measured(round_, name, SCENARIO.name, figures),), 0.01)


# Each figure is decode by TTFT; the order within a round is not that of the names.
VISITS = [
    visit(0, "corral", 10, 200),
    visit(0, "a", 5, 100),
    visit(0, "b <x>", 20, 100),
    visit(1, "b <x>", 20, 100),
    visit(1, "a", 30, 100),
    visit(1, "corral", 30, 100),
    visit(2, "a", 20, 400),
    visit(2, "corral", 22, 300),
    visit(2, "b <x>", 20, 100),
]


@pytest.fixture
def lines() -> list[Line]:
    return summarise([SCENARIO], NAMES, VISITS)


def test_ratios_are_within_a_round_and_medians_over_rounds(lines: list[Line]) -> None:
    decode, ttft = lines
    assert (decode.ours, decode.ratios[0].theirs) == (22, 20)
    ratio = decode.ratios[0]
    assert (ratio.median, ratio.low, ratio.high) == (1.1, 1.0, 2.0)
    assert (ttft.ours, ttft.ratios[0].median, ttft.ratios[1].median) == (200, 1.0, 2.0)


def test_a_mark_is_met_on_the_better_side_of_it() -> None:
    more, less = ROWS
    assert [meets(more, ratio) for ratio in (0.99, 1.0, 1.2)] == [False, True, True]
    assert [meets(less, ratio) for ratio in (1.0, 1.05, 1.06)] == [True, True, False]


def test_the_table_is_markdown_with_marks_for_the_first_rival(lines: list[Line]) -> None:
    rows = [[c.strip() for c in row.strip("|").split("|")] for row in table(lines).splitlines()]
    assert len({len(row) for row in rows}) == 1
    assert rows[0] == [
        *("scenario", "figure", "corral", "a", "ratio (range)"),
        *("b <x>", "ratio (range)", "mark"),
    ]
    assert rows[2][:5] == ["one & only", "decode, tok/s", "22", "20", "1.10 (1.00 to 2.00)"]
    assert [row[-1] for row in rows[2:]] == ["≥ 1.00 met", "≤ 1.05 met"]


def test_alone_there_are_figures_only() -> None:
    alone = [each for each in VISITS if each.measured[0].contender == "corral"]
    lines = summarise([SCENARIO], ["corral"], alone)
    assert re.findall(r"\w+", table(lines).splitlines()[0]) == ["scenario", "figure", "corral"]
    ElementTree.fromstring(picture(lines, "alone"))


def test_the_picture_is_xml_whose_bars_show_how_many_times_as_good(lines: list[Line]) -> None:
    svg = ElementTree.fromstring(picture(lines, "m & n"))
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "m & n" in texts
    assert "times as good as b <x>" in texts
    # Decode 1.10 and 1.10 of theirs; TTFT as long as a's, twice b's, so half as good.
    assert [text for text in texts if text and text.count(".") == 1] == [
        *("1.10", "1.10", "1.00", "0.50")
    ]
    bars = list(svg.iter("{http://www.w3.org/2000/svg}rect"))[-4:]
    first, *_, last = (float(bar.attrib["width"]) for bar in bars)
    assert first / last == pytest.approx(2.2, rel=0.01)


def test_a_bar_that_would_flatten_the_others_is_cut() -> None:
    visits = [visit(0, "corral", 50, 1), visit(0, "a", 1, 1)]
    svg = ElementTree.fromstring(picture(summarise([SCENARIO], ["corral", "a"], visits), "x"))
    *_, long, even = svg.iter("{http://www.w3.org/2000/svg}rect")
    assert float(long.attrib["width"]) == pytest.approx(2.5 * float(even.attrib["width"]), rel=0.01)
    assert "50.00 »" in [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]


def test_figures_that_do_not_compare_are_noted() -> None:
    assert odd_requests(VISITS) == []
    notes = odd_requests([visit(0, "corral", 1, 1), visit(0, "a", 1, 1, prompt=9, cached=8)])
    assert notes == [
        "a reused 8 tokens a prompt in one & only",
        "round 1, one & only: prompts of 8 and 9 tokens",
    ]


@pytest.mark.parametrize("scenarios", [FULL, QUICK], ids=["full", "quick"])
def test_scenarios_have_names_of_their_own(scenarios: tuple[Wave, ...]) -> None:
    assert len({each.name for each in scenarios}) == len(scenarios)
