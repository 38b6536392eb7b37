"""What bench_residency makes of the visits: medians, tables, pictures, its section of a page."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_visits import WARM_MS, figures, visit

from bench.residency.command import main
from bench.residency.figures import Cache, Result
from bench.residency.options import SETTLED, parse
from bench.residency.pictures import pictures
from bench.residency.report import read, report, with_section
from bench.residency.summary import Column, asymptote, rows, start_ms, until_warm, warm_after_ms
from bench.residency.svg import ticks
from bench.residency.table import number, refusals, tables
from provision.failure import Failure

LOCKED = Column("locked", lambda f: f.idle.locked)
LOAD = Column("load", lambda f: f.load_ms)
VISITS = (
    visit(0, "eager", figures(10)),
    visit(0, "lazy & <x>", figures(40, locked=None)),
    visit(0, "eager", figures(5), Cache.WARM),
    visit(1, "lazy & <x>", figures(20)),
    visit(1, "eager", None, error="/api/generate: 507 too large"),
    visit(1, "eager", figures(7), Cache.WARM),
    visit(2, "eager", figures(30)),
    visit(2, "lazy & <x>", figures(60)),
    visit(2, "eager", figures(6), Cache.WARM),
)
RESULT = Result("m & n", ("one note",), 7, VISITS)


# -- numbers -------------------------------------------------------------------------------


def test_a_request_is_warm_within_five_percent_of_the_last_ones() -> None:
    assert until_warm((300, 106, 104, *WARM_MS)) == 3
    assert until_warm((105, 300, *WARM_MS)) == 1
    assert until_warm((300, 200, *WARM_MS)) == math.inf
    assert until_warm(WARM_MS) == math.inf, "the last ones do not judge themselves"
    assert asymptote((900, 1, 2, 50, 3, 4)) == 3
    assert warm_after_ms(figures(early_ms=(300, 106, 104))) == 2020
    assert warm_after_ms(figures(early_ms=(300, 106))) == math.inf


@given(st.lists(st.floats(1, 1e5), min_size=SETTLED + 1, max_size=40))
def test_no_request_before_the_one_found_is_warm(times: list[float]) -> None:
    found = until_warm(times)
    limit = 1.05 * asymptote(times)
    early = times[:-SETTLED] if math.isinf(found) else times[: int(found) - 1]
    assert all(ms > limit for ms in early)
    assert math.isinf(found) or times[int(found) - 1] <= limit


def test_rows_are_medians_of_the_rounds_that_served_in_the_order_of_the_first() -> None:
    cold, lazy, warm = rows(VISITS)
    assert [(r.mode, r.cache) for r in (cold, lazy, warm)] == [
        ("eager", Cache.COLD),
        ("lazy & <x>", Cache.COLD),
        ("eager", Cache.WARM),
    ]
    assert [row.median(LOAD) for row in (cold, lazy, warm)] == [20, 40, 6]
    assert lazy.median(LOCKED) is None, "one round does not know it"
    assert lazy.request_ms()[:2] == [300, 104]
    assert start_ms(cold.figures[0]) == 10 + 200 + 90


def test_a_mode_that_never_served_has_a_row_and_its_reason() -> None:
    (row,) = rows([visit(0, "pinned", None, error="no room")])
    assert row.median(LOAD) is None
    assert refusals([row]) == ["pinned, cold: no figures in 1 of 1 rounds: no room"]
    assert "?" in tables([row])


# -- tables and pictures -------------------------------------------------------------------


def cells(table: str) -> list[list[str]]:
    return [[c.strip() for c in row.strip("|").split("|")] for row in table.splitlines()]


def test_the_tables_are_markdown_with_a_row_for_each_mode_cold_and_warm() -> None:
    memory, requests = (cells(table) for table in tables(rows(VISITS)).split("\n\n"))
    assert [row[:2] for row in memory[2:]] == [
        ["`eager`", "cold"],
        ["`lazy & <x>`", "cold"],
        ["`eager`", "warm"],
    ]
    eager = dict(zip(memory[0], memory[2], strict=True))
    assert (eager["load ms"], eager["RSS load"], eager["RSS infer"]) == ("20", "80", "181")
    assert (eager["resident load"], eager["page cache"]) == ("40", "90")
    assert dict(zip(memory[0], memory[3], strict=True))["locked"] == "?"
    asked = dict(zip(requests[0], requests[2], strict=True))
    assert (asked["major faults"], asked["read MB"]) == ("2,000", "94.2")
    assert (asked["warm request ms"], asked["requests until warm"]) == ("100", "2")
    assert asked["warm after ms"] == "1,020"


def test_numbers_have_three_digits_or_all_before_the_point() -> None:
    assert [number(n) for n in (0, 0.01234, 96.63, 23_436.4, None, math.inf)] == [
        *("0", "0.0123", "96.6", "23,436", "?", "never")
    ]


@pytest.mark.parametrize("name", ["start", "memory", "requests"])
def test_a_picture_is_xml_with_the_modes_in_it(name: str) -> None:
    drawn = pictures(rows(VISITS), "m & n")
    svg = ElementTree.fromstring(drawn[name])
    texts = [element.text or "" for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0].startswith("m & n: ")
    assert any(text.startswith("lazy & <x>") for text in texts)
    assert any(text.startswith("eager") for text in texts)


def test_bars_are_as_long_as_what_they_show() -> None:
    svg = ElementTree.fromstring(pictures(rows(VISITS), "t")["start"])
    bars = [b.attrib for b in svg.iter("{http://www.w3.org/2000/svg}rect")][4:7]
    load, prefill, generation = (float(bar["width"]) for bar in bars)
    assert prefill / load == pytest.approx(200 / 20, rel=0.02)
    assert prefill / generation == pytest.approx(200 / 90, rel=0.02)
    begin = [float(bar["x"]) for bar in bars]
    assert begin[1:] == pytest.approx([begin[0] + load, begin[0] + load + prefill], abs=0.2)


def test_a_slow_round_does_not_flatten_the_bars() -> None:
    slow = [visit(n, "eager", figures(load_ms)) for n, load_ms in enumerate((10, 10, 90_000))]
    svg = ElementTree.fromstring(pictures(rows(slow), "t")["start"])
    bars = [float(b.attrib["width"]) for b in svg.iter("{http://www.w3.org/2000/svg}rect")][4:7]
    assert sum(bars) > 350
    (whisker,) = svg.iter("{http://www.w3.org/2000/svg}polyline")
    assert max(float(p.split(",")[0]) for p in whisker.attrib["points"].split()) < 720
    assert "» 300" in [e.text for e in svg.iter("{http://www.w3.org/2000/svg}text")]


def test_a_curve_falls_as_the_requests_become_warm() -> None:
    only = rows([visit(0, "eager", figures())])
    svg = ElementTree.fromstring(pictures(only, "t")["requests"])
    *_, curve = svg.iter("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, p.split(","))) for p in curve.attrib["points"].split()]
    heights = [y for _, y in points]
    assert len(points) == 7
    assert heights[0] < heights[1] < heights[2] == heights[-1], "y grows downwards"


def test_a_run_in_which_all_refused_is_drawn_too() -> None:
    for svg in pictures(rows([visit(0, "pinned", None, error="x")]), "t").values():
        ElementTree.fromstring(svg)


def test_ticks_enclose_the_values() -> None:
    assert ticks(150, 3000) == [100, 200, 500, 1000, 2000, 5000]
    assert ticks(100, 100) == [100]


# -- files ---------------------------------------------------------------------------------

PAGE = "# Top\n\n<!-- bench:begin one -->\nold\n<!-- bench:end one -->\n\nthe rest\n"


def test_a_section_is_replaced_and_the_rest_of_the_page_kept() -> None:
    once = with_section(PAGE, "one", "new\n")
    assert once == PAGE.replace("old", "new")
    assert with_section(once, "one", "new\n") == once
    with pytest.raises(Failure, match=r"no place for two.*\n.*begin two"):
        with_section(PAGE, "two", "new\n")
    with pytest.raises(Failure, match="no place for one"):
        with_section(PAGE.partition("<!-- bench:end")[0], "one", "new\n")


def test_a_run_is_written_whole_and_can_be_reported_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    report(RESULT, parse(["--docs", str(page), "--name", "one"]))
    text = page.read_text()
    assert tables(rows(VISITS)) in text
    assert tables(rows(VISITS)) in capsys.readouterr().out
    assert "- one note\n- eager, cold: no figures in 1 of 3 rounds" in text
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (tmp_path / link).is_file(), link
    kept = tmp_path / "page" / "one.json"
    assert read(kept) == RESULT
    page.write_text(PAGE)
    assert main(["--from", str(kept), "--docs", str(page)]) == 0
    assert page.read_text() == text


def test_json_and_pictures_go_where_they_are_asked_for(tmp_path: Path) -> None:
    result = replace(RESULT, visits=VISITS[:1])
    report(result, parse(["--json", f"{tmp_path}/x.json", "--svg", f"{tmp_path}/a.b"]))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("a.b-memory.svg", "a.b-requests.svg", "a.b-start.svg", "x.json")
    ]


def test_what_is_no_result_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"visits": 3}')
    with pytest.raises(Failure, match=r"x\.json"):
        read(path)
    with pytest.raises(Failure, match="nowhere"):
        read(tmp_path / "nowhere")
