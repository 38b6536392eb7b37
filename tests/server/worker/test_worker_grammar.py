"""What a grammar does to the answers of a real model, and what a bad one leaves whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_process import WorkerProcess, loaded_worker, request

from server.protocol import Sampling

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
OBJECT = r"""
root ::= "{" ws "\"city\":" ws string "," ws "\"people\":" ws [0-9]{1,8} "}"
string ::= "\"" [a-zA-Zé ]{1,20} "\""
ws ::= " "?
"""


@pytest.fixture(scope="module")
def worker(smollm2: Path) -> Iterator[WorkerProcess]:
    with loaded_worker(smollm2) as (worker, _):
        yield worker


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0, grammar=OBJECT),
        Sampling(temperature=1.5, seed=3, grammar=OBJECT),
        Sampling(temperature=1.5, seed=3, typical_p=0.5, xtc_probability=1, grammar=OBJECT),
        Sampling(seed=3, mirostat=1, grammar=OBJECT),
        Sampling(seed=3, mirostat=2, dry_multiplier=1, grammar=OBJECT),
    ],
)
def test_the_answer_follows_the_grammar_whatever_draws(
    worker: WorkerProcess, sampling: Sampling
) -> None:
    answer = worker.answer(request("g", QUESTION, sampling=sampling, max_tokens=100))
    assert answer.end.reason == "stop"
    assert set(json.loads(answer.text)) == {"city", "people"}


def test_a_grammar_has_a_seed_reproduced(worker: WorkerProcess) -> None:
    sampling = Sampling(temperature=1.2, seed=7, grammar="root ::= [a-z ]+")
    first, second = (
        worker.answer(request(name, QUESTION, sampling=sampling, max_tokens=12)) for name in "ab"
    )
    assert first.text == second.text != ""
    assert set(first.text) <= set("abcdefghijklmnopqrstuvwxyz ")


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= "a', "unexpected end of input"),
        ("root ::= nothing", "Undefined rule identifier 'nothing'"),
        ('other ::= "a"', "does not contain a 'root' symbol"),
        ('root ::= root "a"', "left recursion"),
    ],
)
def test_a_bad_grammar_is_rejected_with_llama_cpps_reason_and_the_worker_lives(
    worker: WorkerProcess, grammar: str, reason: str
) -> None:
    rejected = worker.rejected(request("b", QUESTION, sampling=Sampling(grammar=grammar)))
    assert reason in rejected.message
    assert rejected.param == "grammar"
    assert "Paris" in worker.answer(request("q", QUESTION, max_tokens=20)).text


def test_a_grammar_that_admits_nothing_ends_the_answer(worker: WorkerProcess) -> None:
    nothing = Sampling(temperature=0, grammar=r"root ::= [^\x01-\U0010FFFF]")
    answer = worker.answer(request("n", QUESTION, sampling=nothing))
    assert (answer.text, answer.end.reason, answer.end.completion_tokens) == ("", "stop", 0)
    # All has been said, and the end may not be.
    said = Sampling(temperature=0, grammar='root ::= "yes"')
    answer = worker.answer(request("s", QUESTION, sampling=said, ignore_eos=True))
    assert (answer.text, answer.end.reason) == ("yes", "stop")
    assert answer.end.completion_tokens == answer.told_tokens


def test_others_draw_freely_beside_a_grammar(worker: WorkerProcess) -> None:
    bound = request(
        "a", QUESTION, sampling=Sampling(temperature=0, grammar='root ::= "no" [ ]*'), max_tokens=8
    )
    alone = worker.answer(request("c", QUESTION, max_tokens=8))
    answers = worker.answers(bound, request("b", QUESTION, max_tokens=8))
    assert answers[0].text.strip() == "no"
    assert answers[1].text == alone.text
