"""Real models whose requests begin in cells that others left or share: the tokens are those of
a fresh worker, where the next token leads clearly (see test_neighbours_do_not_change_greedy_tokens
for why it has to)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_models import write_mamba
from worker_process import Answer, WorkerProcess, loaded_worker, request

from server.protocol import Finished, Generate, Sampling, Step

SYSTEM = "You count, one by one, and never stop: " + "red, green, blue, " * 12


def counting(last: int, first: int = 1) -> str:
    return ", ".join(map(str, range(first, last))) + ","


def fresh(model: Path, prompt: str, max_tokens: int = 12) -> Answer:
    with loaded_worker(model, n_ctx=2048, n_ubatch=128) as (worker, _):
        return worker.answer(request("fresh", prompt, max_tokens=max_tokens, ignore_eos=True))


@pytest.fixture
def worker(smollm2: Path) -> Iterator[WorkerProcess]:
    with loaded_worker(smollm2, n_ctx=2048, n_ubatch=128) as (process, _):
        yield process


def test_a_conversation_computes_only_what_is_new(worker: WorkerProcess, smollm2: Path) -> None:
    first = worker.answer(request("a", SYSTEM + counting(20), max_tokens=8))
    assert first.end.cached_tokens == 0
    prompt = SYSTEM + counting(20) + first.text + " 22, 23, 24, 25,"
    second = worker.answer(request("b", prompt, max_tokens=12, ignore_eos=True))
    # All but the last sampled token, which was never decoded, and where that joins the rest.
    assert second.end.cached_tokens >= first.end.prompt_tokens + first.end.completion_tokens - 2
    assert second.text == fresh(smollm2, prompt).text


def test_the_same_prompt_again_computes_its_last_token(worker: WorkerProcess) -> None:
    for seed in (1, 2, 1):
        answer = worker.answer(
            request("r", SYSTEM, max_tokens=12, sampling=Sampling(temperature=1.5, seed=seed))
        )
    assert answer.end.cached_tokens == answer.end.prompt_tokens - 1


def test_conversations_share_their_system_prompt(worker: WorkerProcess, smollm2: Path) -> None:
    worker.answer(request("s", SYSTEM, max_tokens=1))
    prompts = [SYSTEM + counting(20, first) for first in (1, 5, 9)]
    answers = worker.answers(
        *(request(str(i), p, max_tokens=12, ignore_eos=True) for i, p in enumerate(prompts))
    )
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.end.cached_tokens > 60
        assert answer.text == fresh(smollm2, prompt).text


def test_a_busy_slot_gives_its_prefix(worker: WorkerProcess, smollm2: Path) -> None:
    long = request("long", SYSTEM + counting(20), max_tokens=-1, ignore_eos=True)
    worker.accepted(long)
    worker.expect(Step)
    prompt = SYSTEM + counting(30, 10)
    worker.send(
        request("b", prompt, max_tokens=12, ignore_eos=True),
    )
    answer = Answer()
    while answer.finished is None:
        message = worker.receive()
        if isinstance(message, Step):
            answer.text += "".join(piece.text for piece in message.pieces if piece.id == "b")
        elif isinstance(message, Finished):
            answer.finished = message
    assert answer.end.id == "b"
    assert answer.end.cached_tokens > 60
    assert answer.text == fresh(smollm2, prompt).text
    worker.cancel("long")
    worker.collect(["long"])


def test_a_sliding_window_is_reused_as_far_as_it_reaches(gemma3: Path) -> None:
    whole = counting(240)
    cut = counting(60) + " once more: " + counting(15)
    with loaded_worker(gemma3, n_ctx=2048, n_ubatch=128, n_slots=1) as (worker, _):
        first = worker.answer(request("a", whole, max_tokens=4))
        # More than the window and the cells beside it hold.
        assert first.end.prompt_tokens > 900
        more = whole + first.text + counting(250, 242)
        near = worker.answer(request("near", more, max_tokens=8))
        assert near.end.cached_tokens > 900
        far = worker.answer(request("far", cut, max_tokens=8))
        assert far.end.cached_tokens == 0
        again = worker.answer(request("again", cut + far.text, max_tokens=8))
        assert again.end.cached_tokens > 200
    assert near.text == fresh(gemma3, more, 8).text
    assert far.text == fresh(gemma3, cut, 8).text
    assert again.text == fresh(gemma3, cut + far.text, 8).text


def test_a_sliding_window_is_shared(gemma3: Path) -> None:
    prompts = [counting(60) + " " + counting(80, first) for first in (60, 30)]
    with loaded_worker(gemma3, n_ctx=2048, n_ubatch=128) as (worker, _):
        one, other = worker.answers(
            *(request(p[-20:], p, max_tokens=8) for p in (prompts[0], prompts[1] + " 80,"))
        )
    assert one.end.cached_tokens == 0
    assert other.end.cached_tokens > 200
    assert one.text == fresh(gemma3, prompts[0], 8).text
    assert other.text == fresh(gemma3, prompts[1] + " 80,", 8).text


def test_a_state_that_cannot_be_cut_is_continued_or_left(smollm2: Path, tmp_path: Path) -> None:
    mamba = write_mamba(tmp_path / "mamba.gguf", smollm2)
    whole = [300 + i for i in range(50)]
    extended, cut, same = [*whole, 7, 8, 9], [*whole[:30], 7], whole
    with loaded_worker(mamba, n_slots=2) as (worker, _):
        worker.answer(request("w", whole, max_tokens=0))
        answers = [worker.answer(request("r", p)) for p in (extended, cut, same)]
    assert [answer.end.cached_tokens for answer in answers] == [50, 0, 0]
    for prompt, answer in zip((extended, cut, same), answers, strict=True):
        with loaded_worker(mamba, n_slots=2) as (worker, _):
            assert answer.text == worker.answer(request("fresh", prompt)).text
    assert len({answer.text for answer in answers}) == 3


def test_requests_that_outgrow_the_context_take_turns(smollm2: Path) -> None:
    prompts = [counting(first + 25, first) for first in (101, 201, 301)]

    def asked(i: int) -> Generate:
        return request(str(i), prompts[i], max_tokens=40, ignore_eos=True)

    with loaded_worker(smollm2) as (worker, ready):
        answers = worker.answers(*(asked(i) for i in range(3)))
    assert 256 == ready.n_ctx < sum(a.end.prompt_tokens for a in answers)
    with loaded_worker(smollm2) as (worker, _):
        assert [a.text for a in answers] == [worker.answer(asked(i)).text for i in range(3)]
    for answer in answers:
        assert (answer.end.reason, answer.end.completion_tokens) == ("length", 40)
        assert answer.told_tokens == 40


def test_hundreds_of_requests_leave_nothing_behind(smollm2: Path) -> None:
    rng = random.Random(5)
    with loaded_worker(smollm2, n_ctx=256, n_slots=4) as (worker, _):
        worker.answer(request("warm", "Once", max_tokens=2))
        fds = len(list(Path(f"/proc/{worker.process.pid}/fd").iterdir()))
        for batch in range(50):
            made = [
                request(
                    f"{batch}-{i}",
                    [rng.randrange(100, 102) for _ in range(rng.choice((1, 3, 6, 30)))],
                    max_tokens=rng.choice((0, 1, 2, 5)),
                    stop=rng.choice(([], ["e"], ["the", " a"])),
                    sampling=Sampling(seed=batch),
                )
                for i in range(4)
            ]
            worker.send(*made)
            for one in made:
                if rng.random() < 0.3:
                    worker.cancel(one.id)
            answers = worker.collect([one.id for one in made])
            assert {a.end.reason for a in answers} <= {"stop", "length", "cancelled"}
        # It needs every cell, and the four after it every slot.
        full = worker.answer(request("all", [200] * 256, max_tokens=1))
        assert (full.end.reason, full.end.prompt_tokens) == ("length", 256)
        four = worker.answers(*(request(str(i), "Once", max_tokens=2) for i in range(4)))
        assert [a.end.reason for a in four] == ["length"] * 4
        assert len(list(Path(f"/proc/{worker.process.pid}/fd").iterdir())) == fds
