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


# Each character doubles the ways to read the text, or all but does.
AMBIGUOUS = (
    'root ::= "a" root "x" | "a" root "y"',
    'root ::= [^x] root "x" | [^y] root "y"',
    'root ::= "(" root ")" | twice\ntwice ::= "(" twice "x" | "(" twice "y"',
)


@pytest.mark.parametrize("grammar", AMBIGUOUS)
def test_an_ambiguous_grammar_ends_its_request_alone_in_bounded_memory(
    smollm2: Path, grammar: str
) -> None:
    free = request("free", "10, 20, 30, 40,", max_tokens=60, ignore_eos=True)
    bound = request("bound", QUESTION, max_tokens=-1, sampling=Sampling(0, grammar=grammar))
    with loaded_worker(smollm2) as (worker, _):
        before = worker.status().rss_bytes
        worker.send(free, bound)
        answers = worker.collect(["bound", "free"])
        assert peak_bytes(worker) - before < 500 * 2**20
        ended = answers[0].end
        assert (ended.reason, ended.param) == ("error", "grammar")
        assert "too ambiguous" in (ended.error or "")
        assert ended.completion_tokens < 50
        assert answers[1].text.startswith(" 50, 60, 70, 80, 90, 100")
        assert answers[1].end.completion_tokens == 60
        assert "Paris" in worker.answer(request("q", QUESTION, max_tokens=20)).text


def test_a_grammar_with_too_many_beginnings_is_rejected(worker: WorkerProcess) -> None:
    grammar = "root ::= " + " | ".join(f'"{n}"' for n in range(50_000))
    rejected = worker.rejected(request("b", QUESTION, sampling=Sampling(grammar=grammar)))
    assert "too ambiguous" in rejected.message
    assert rejected.param == "grammar"


def test_a_choice_of_thousands_of_words_is_no_ambiguity(worker: WorkerProcess) -> None:
    words = sorted({f"{n * 7919 % 9973:04} street" for n in range(2000)})
    grammar = "root ::= " + " | ".join(f'"{word}"' for word in words)
    answer = worker.answer(request("w", QUESTION, sampling=Sampling(0, grammar=grammar)))
    assert answer.text in words


def test_nested_lists_are_no_ambiguity(worker: WorkerProcess) -> None:
    nested = Sampling(0, grammar='root ::= "[" (root ("," root)*)? "]"')
    answer = worker.answer(request("n", QUESTION, sampling=nested, max_tokens=100))
    assert answer.end.reason in ("stop", "length")
    assert set(answer.text) <= set("[],")


def peak_bytes(worker: WorkerProcess) -> int:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def test_others_draw_freely_beside_a_grammar(worker: WorkerProcess) -> None:
    bound = request(
        "a", QUESTION, sampling=Sampling(temperature=0, grammar='root ::= "no" [ ]*'), max_tokens=8
    )
    alone = worker.answer(request("c", QUESTION, max_tokens=8))
    answers = worker.answers(bound, request("b", QUESTION, max_tokens=8))
    assert answers[0].text.strip() == "no"
    assert answers[1].text == alone.text
