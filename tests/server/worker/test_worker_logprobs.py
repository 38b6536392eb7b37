"""How likely tokens were: the arithmetic, what is told when, and against the real model."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from worker_process import ROOT, loaded_worker, request

from server.protocol import Likelihood, Sampling, TokenLogprobs
from server.worker.logprobs import LogprobQueue, likeliest, log_softmax

PROMPT = "The capital of France is"


def named(*names: str) -> list[TokenLogprobs]:
    return [TokenLogprobs(Likelihood(name.encode(), 0), []) for name in names]


def test_shares_of_huge_logits_sum_up_to_one() -> None:
    logprobs = log_softmax(np.array([3e4, 3e4 + math.log(3), -3e4], dtype=np.float32))
    assert np.exp(logprobs).sum() == pytest.approx(1)
    assert logprobs[1] - logprobs[0] == pytest.approx(math.log(3), abs=0.002)


def test_the_likeliest_come_in_order_and_equals_by_id() -> None:
    logprobs = np.array([-2.0, -1.0, -3.0, -1.0])
    assert likeliest(logprobs, 3) == [1, 3, 0]
    assert likeliest(logprobs, 1) == [1]
    assert likeliest(logprobs, 0) == []
    assert likeliest(logprobs, 9) == [1, 3, 0, 2]


def test_tokens_are_told_with_the_piece_that_they_begin_in() -> None:
    queue = LogprobQueue(0)
    a, b, c = named("on", "ly", " so")
    queue.push(a, 2)
    assert queue.take("") == []
    queue.push(b, 2)
    # The y may begin a stop string.
    assert queue.take("onl") == [a, b]
    queue.push(c, 3)
    assert queue.take("y") == []
    assert queue.take_all() == [c]
    assert queue.take_all() == []


def reference(model: Path, n: int) -> list[tuple[str, float]]:
    """What the model draws greedily, by a softmax of the test's own."""
    script = Path(__file__).with_name("reference_softmax.py")
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(model), PROMPT, str(n)]
    found = subprocess.run(command, env=environ, check=True, capture_output=True).stdout
    return [(text, logprob) for text, logprob in json.loads(found)]


def test_they_are_those_of_the_models_own_softmax(smollm2: Path) -> None:
    with loaded_worker(smollm2) as (worker, _):
        answer = worker.answer(request("l", PROMPT, max_tokens=6, logprobs=3))
        plain = worker.answer(request("p", PROMPT, max_tokens=6))
        # Neither temperature nor bias changes what the model gave.
        biased = Sampling(temperature=1.7, top_k=1, logit_bias={0: 5})
        other = worker.answer(request("o", PROMPT, sampling=biased, max_tokens=6, logprobs=0))
    assert plain.text == answer.text
    assert plain.logprobs == []
    assert b"".join(one.drawn.token for one in answer.logprobs).decode() == answer.text
    assert [len(one.top) for one in answer.logprobs] == [3] * 6
    for one in answer.logprobs:
        assert one.top[0] == one.drawn
        assert [t.logprob for t in one.top] == sorted((t.logprob for t in one.top), reverse=True)
    expected = reference(smollm2, 6)
    assert [one.drawn.token.decode() for one in answer.logprobs] == [text for text, _ in expected]
    assert [one.drawn.logprob for one in answer.logprobs] == pytest.approx(
        [logprob for _, logprob in expected], abs=1e-3
    )
    assert [one.drawn for one in other.logprobs] == [one.drawn for one in answer.logprobs]


def test_what_a_stop_string_cuts_off_is_not_told(smollm2: Path) -> None:
    with loaded_worker(smollm2) as (worker, _):
        whole = worker.answer(request("w", PROMPT, max_tokens=8, logprobs=0))
        stop = whole.logprobs[3].drawn.token.decode()
        cut = worker.answer(request("c", PROMPT, max_tokens=8, logprobs=0, stop=[stop]))
    assert cut.end.reason == "stop"
    assert b"".join(one.drawn.token for one in cut.logprobs).decode() == cut.text
