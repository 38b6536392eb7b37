"""What is counted of one request on its way."""

from __future__ import annotations

import logging

import pytest
from made_calls import made_call, made_spec

from server.errors import BadRequest, EndedEarly, ServingError
from server.ledgers import Ledgers
from server.metrics import Metrics
from server.protocol import Finished, Piece, Timings
from server.request import Request


def counted(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model": "a:latest"})


def test_tokens_that_gave_no_text_are_counted_with_the_workers_last_word() -> None:
    metrics = Metrics(Ledgers())
    request = Request.of(made_call(made_spec()), 10, metrics)
    request.submit(11, load_began=5, load_ended=6)
    request.accept(4)
    request.add(Piece("1", "a", 2), 12)
    request.add(Piece("1", "b", 1), 14)
    assert counted(metrics, "corral_generation_tokens_total") == 3
    request.finish(Finished("1", "stop", 4, 5, Timings(0, 0, 0, 0)), 15)
    assert counted(metrics, "corral_generation_tokens_total") == 5


def test_cached_tokens_are_hits_of_the_prompt_that_was_looked_up() -> None:
    metrics = Metrics(Ledgers())
    request = Request.of(made_call(made_spec()), 10, metrics)
    request.submit(11, load_began=5, load_ended=6)
    request.accept(4)
    assert counted(metrics, "corral_prefix_cache_hits_total") == 0
    request.finish(Finished("1", "stop", 4, 5, Timings(0, 0, 0, 0), cached_tokens=3), 15)
    assert counted(metrics, "corral_prefix_cache_queries_total") == 4
    assert counted(metrics, "corral_prefix_cache_hits_total") == 3


async def test_an_error_that_names_a_field_is_the_callers_fault() -> None:
    for param, kind in (("grammar", BadRequest), (None, ServingError)):
        request = Request.of(made_call(made_spec()), 10, Metrics(Ledgers()))
        end = Finished("1", "error", 4, 2, Timings(0, 0, 0, 0), error="too much", param=param)
        request.finish(end, 20)
        with pytest.raises(ServingError, match="too much") as caught:
            await request.mailbox.get()
        assert type(caught.value) is kind
        assert caught.value.param == param


async def test_an_end_that_nobody_asked_for_is_no_whole_answer() -> None:
    metrics = Metrics(Ledgers())
    request = Request.of(made_call(made_spec()), 10, metrics)
    request.finish(Finished("1", "cancelled", 4, 2, Timings(0, 0, 0, 0)), 20)
    with pytest.raises(EndedEarly, match="ended early: cancelled"):
        await request.mailbox.get()
    assert b'status="503"' in metrics.render()


def test_times_count_from_the_arrival_and_between_tokens() -> None:
    metrics = Metrics(Ledgers())
    request = Request.of(made_call(made_spec()), 10, metrics)
    request.submit(11, load_began=5, load_ended=6)
    request.add(Piece("1", "a", 1), 12)
    request.add(Piece("1", "", 0), 13)
    request.add(Piece("1", "b", 1), 16)
    request.finish(Finished("1", "stop", 4, 2, Timings(0, 0, 0, 0)), 20)
    assert counted(metrics, "corral_queue_seconds_sum") == 1
    assert counted(metrics, "corral_time_to_first_token_seconds_sum") == 2
    assert counted(metrics, "corral_inter_token_latency_seconds_sum") == 4
    assert counted(metrics, "corral_request_duration_seconds_sum") == 10


@pytest.mark.parametrize(("abandoned", "counted_requests"), [(None, 1), (499, None)])
def test_paging_is_counted_of_requests_that_were_answered(
    abandoned: int | None, counted_requests: int | None
) -> None:
    metrics = Metrics(Ledgers())
    request = Request.of(made_call(made_spec()), 10, metrics)
    request.abandoned = abandoned
    request.finish(Finished("1", "stop", 4, 2, Timings(0, 0, 3, 8192)), 20)
    assert counted(metrics, "corral_request_major_faults_count") == counted_requests
    assert counted(metrics, "corral_request_read_bytes_count") == counted_requests
    if abandoned is None:
        assert counted(metrics, "corral_request_major_faults_sum") == 3
        assert counted(metrics, "corral_request_read_bytes_sum") == 8192


def test_bytes_that_were_not_counted_are_no_zero(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics(Ledgers())
    request = Request.of(made_call(made_spec()), 10, metrics)
    with caplog.at_level(logging.INFO, "corral.request"):
        request.finish(Finished("1", "stop", 4, 2, Timings(0, 0, 3, None)), 20)
    assert counted(metrics, "corral_request_read_bytes_count") is None
    assert caplog.records[-1].getMessage().endswith("major_faults=3 read_bytes=-")
