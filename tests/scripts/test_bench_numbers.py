"""bench_serving's arithmetic: percentiles, gaps, and what a stream's bytes tell of its timing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.client import Recording
from bench.measure import arrival_figures, wave_figures
from bench.sse import timeline
from bench.stats import gaps, gaps_within, percentile
from provision.failure import Failure


def piece(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


def usage(prompt: int, completion: int, cached: int) -> bytes:
    told = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return b"data: " + json.dumps({"choices": [], "usage": told}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def recorded(sent: float, *chunks: tuple[float, bytes]) -> Recording:
    recording = Recording()
    recording.sent = sent
    recording.chunks += chunks
    return recording


# -- statistics ----------------------------------------------------------------------------


def test_percentiles_lie_between_the_nearest_ranks() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, p) for p in (0, 50, 100)] == [1.0, 2.5, 4.0]
    assert percentile(list(range(101)), 99) == 99
    assert percentile([7.0], 99) == 7.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_is_within_the_values_and_grows(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert min(values) <= found <= max(values)
    assert found <= percentile(values, 100)


def test_gaps_are_between_neighbours() -> None:
    assert gaps([1, 2, 5]) == [1, 3]
    assert gaps([1]) == []


def test_a_window_takes_the_gaps_that_meet_it_and_the_open_one() -> None:
    # Tokens at 0, 1, 4, 9; the window from 2 to 8 meets 1..4 and half of 4..9.
    assert gaps_within([0, 1, 4, 9], 2, 8) == [3, 4]
    assert gaps_within([0, 1], 2, 8) == [7], "a stream that stands still shows its standstill"
    assert gaps_within([0, 1, 3, 8], 2, 8) == [2, 5], "a token at the end closes its gap"


# -- streams -------------------------------------------------------------------------------


def test_an_event_counts_when_its_line_is_complete() -> None:
    first, second = piece("a"), piece("b")
    line = timeline([(1.0, first[:9]), (2.0, first[9:] + second), (3.0, usage(7, 2, 5) + DONE)])
    assert line.times == (2.0, 2.0)
    assert (line.prompt_tokens, line.completion_tokens, line.cached_tokens) == (7, 2, 5)
    assert line.done


def test_events_without_text_and_comments_are_no_tokens() -> None:
    end = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\r\n\r\n'
    line = timeline([(1.0, b": ping\n\n"), (2.0, piece("a")), (3.0, end)])
    assert line.times == (2.0,)
    assert not line.done


def test_usage_on_a_chunk_with_text_counts_too() -> None:
    told = {"choices": [{"text": "a"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    line = timeline([(1.0, b"data: " + json.dumps(told).encode() + b"\n\n")])
    assert (line.times, line.prompt_tokens, line.cached_tokens) == ((1.0,), 3, 0)


def test_an_error_within_a_stream_is_told() -> None:
    with pytest.raises(Failure, match="out of cells"):
        timeline([(1.0, b'data: {"error": {"message": "out of cells"}}\n\n')])


# -- figures -------------------------------------------------------------------------------


def answered(sent: float, *times: float, tokens: int | None = None) -> Recording:
    n = len(times) if tokens is None else tokens
    end = (times[-1], usage(10, n, 4) + DONE)
    return recorded(sent, *((time, piece("x")) for time in times), end)


def test_a_waves_figures() -> None:
    waves = [[answered(0, 1, 2, 3), answered(0, 2, 3, 4)], [answered(10, 11, 12, 14)]]
    figures = wave_figures(waves, 3)
    assert figures.ttft_p50 == 1000
    assert figures.itl_p50 == 1000
    assert figures.itl_p99 == pytest.approx(1950)
    assert figures.decode == 1.0
    assert figures.total == 9 / (4 + 4)
    assert (figures.prompt_tokens, figures.cached_tokens) == (10, 4)


def test_an_answer_cut_short_is_no_figure() -> None:
    with pytest.raises(Failure, match="2 of 3 tokens"):
        wave_figures([[answered(0, 1, 2)]], 3)


def test_arrivals_figures_are_of_the_running_streams_while_the_prompt_is_read() -> None:
    running = [
        recorded(0, *((t, piece("x")) for t in (8, 9, 13, 19, 25))),
        recorded(0, *((t, piece("x")) for t in (8, 9))),
    ]
    figures = arrival_figures(running, answered(10, 20, 21))
    # The first's gaps: 9..13, 13..19 and the open 1; the second stands still for 11.
    assert figures.itl_p50 == 1000 * (4 + 6) / 2
    assert figures.itl_p99 == pytest.approx(1000 * (6 + 5 * 0.97))
    assert figures.ttft_p50 == 10_000
    assert figures.total == 2 / 10


def test_running_streams_that_end_too_early_are_told() -> None:
    with pytest.raises(Failure, match="ended before"):
        arrival_figures([answered(0, 1, 2)], answered(1, 3))
