"""What a real model in a real worker process generates, and how requests begin and end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_process import WorkerProcess, loaded_worker, request

from server.protocol import Accepted, Finished, Ready, Rejected, Sampling, Step

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
LONG = "The quick brown fox jumps over the lazy dog. " * 20


@pytest.fixture(scope="module")
def loaded(smollm2: Path) -> Iterator[tuple[WorkerProcess, Ready]]:
    with loaded_worker(smollm2) as pair:
        yield pair


@pytest.fixture
def worker(loaded: tuple[WorkerProcess, Ready]) -> WorkerProcess:
    return loaded[0]


def test_ready_tells_sizes_in_use(loaded: tuple[WorkerProcess, Ready], smollm2: Path) -> None:
    ready = loaded[1]
    assert (ready.n_ctx, ready.n_slots) == (256, 4)
    assert 0.9 * smollm2.stat().st_size < ready.weights.file < smollm2.stat().st_size
    assert (ready.weights.anonymous, ready.weights.device) == (0, 0)
    # 30 layers, 3 KV heads of 64, K and V in two bytes: 23,040 bytes a cell.
    assert ready.kv_bytes == 256 * 23_040
    assert 0 < ready.load_seconds < 60


def test_a_question_gets_its_answer(worker: WorkerProcess) -> None:
    answer = worker.answer(request("q", QUESTION, max_tokens=40))
    assert "Paris" in answer.text
    assert answer.end.reason == "stop"
    assert "<|" not in answer.text
    assert answer.end.prompt_tokens == answer.prompt_tokens > 10
    # The token that ended it has no text, and counts.
    assert answer.told_tokens == answer.end.completion_tokens - 1
    assert answer.end.timings.prompt_seconds > 0
    assert answer.end.timings.predicted_seconds > 0


def test_max_tokens_ends_with_length(worker: WorkerProcess) -> None:
    answer = worker.answer(request("n", "Once upon a time", max_tokens=7))
    assert (answer.end.reason, answer.end.completion_tokens) == ("length", 7)
    assert answer.told_tokens == 7


def test_no_tokens_asked_reads_the_prompt_only(worker: WorkerProcess) -> None:
    answer = worker.answer(request("p", "Once upon a time", max_tokens=0))
    assert (answer.end.reason, answer.end.completion_tokens) == ("length", 0)
    assert (answer.text, answer.end.prompt_tokens) == ("", 4)


def test_a_full_context_ends_with_length(worker: WorkerProcess) -> None:
    answer = worker.answer(request("f", [100] * 244, max_tokens=-1, ignore_eos=True))
    # 12 cells are left, and the last token sampled needs none.
    assert (answer.end.reason, answer.end.completion_tokens) == ("length", 13)


def test_ignore_eos_goes_on(worker: WorkerProcess) -> None:
    answer = worker.answer(request("e", QUESTION, max_tokens=60, ignore_eos=True))
    assert (answer.end.reason, answer.end.completion_tokens) == ("length", 60)


@pytest.mark.parametrize("stop", ["of France is", "Par", "The", "capital of"])
def test_a_stop_string_ends_the_answer_before_it(worker: WorkerProcess, stop: str) -> None:
    whole = worker.answer(request("w", QUESTION, max_tokens=40)).text
    assert stop in whole
    answer = worker.answer(request("s", QUESTION, max_tokens=40, stop=["nowhere to be seen", stop]))
    assert answer.end.reason == "stop"
    assert answer.text == whole[: whole.index(stop)]


def test_text_held_for_a_stop_string_is_given_at_the_end(worker: WorkerProcess) -> None:
    whole = worker.answer(request("w", "Once upon a time", max_tokens=8))
    held = worker.answer(request("h", "Once upon a time", max_tokens=8, stop=[whole.text + "!"]))
    assert held.pieces == [whole.text]
    assert held.told_tokens == 8


def test_characters_come_whole(worker: WorkerProcess) -> None:
    # An octopus is three tokens, of which none is a character.
    answer = worker.answer(request("u", "🐙🦑" * 5, max_tokens=20))
    assert answer.pieces == ["🐙"] * 6
    assert answer.told_tokens == 18
    assert answer.end.completion_tokens == 20


@pytest.mark.parametrize("mirostat", [1, 2])
def test_mirostat_keeps_to_the_surprise_it_is_told(worker: WorkerProcess, mirostat: int) -> None:
    def sample(tau: float) -> str:
        sampling = Sampling(mirostat=mirostat, mirostat_tau=tau, seed=5)
        return worker.answer(request("m", "Once upon a time", sampling=sampling)).text

    # First, as what the cells hold already is not computed in the same batches.
    greedy = worker.answer(request("g", "Once upon a time")).text
    assert sample(0) == greedy
    assert sample(9) == sample(9) != sample(0)


def test_dry_breaks_a_loop(worker: WorkerProcess) -> None:
    def answer(multiplier: float, breakers: tuple[str, ...] = ()) -> str:
        sampling = Sampling(
            temperature=0, dry_multiplier=multiplier, dry_sequence_breakers=breakers
        )
        return worker.answer(request("d", "one two three. " * 8, sampling=sampling)).text

    assert answer(0).count("One two three") > 1
    assert answer(10).count("One two three") <= 1
    assert answer(10, (" ",)) == answer(0)


def test_xtc_drops_the_likeliest(worker: WorkerProcess) -> None:
    def answer(probability: float) -> str:
        sampling = Sampling(
            top_k=5, temperature=0.01, seed=1, xtc_probability=probability, xtc_threshold=0
        )
        return worker.answer(request("x", QUESTION, sampling=sampling, max_tokens=8)).text

    assert answer(0) == worker.answer(request("g", QUESTION, max_tokens=8)).text
    assert answer(1) == answer(1) != answer(0)


def test_seeds_reproduce_and_differ(worker: WorkerProcess) -> None:
    def sample(seed: int | None) -> str:
        sampling = Sampling(temperature=1.5, seed=seed)
        return worker.answer(request("r", "Once", sampling=sampling, max_tokens=12)).text

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    assert sample(None) != sample(None)


def test_logit_bias_bans_a_token(worker: WorkerProcess) -> None:
    base = worker.answer(request("a", "The capital of France is", max_tokens=1)).text
    paris = 7042
    banned = Sampling(temperature=0, logit_bias={paris: -100.0})
    other = worker.answer(
        request("b", "The capital of France is", max_tokens=1, sampling=banned)
    ).text
    assert base == " Paris"
    assert other != base


def test_repeat_penalty_sees_the_prompt(worker: WorkerProcess) -> None:
    prompt = "We have seen Paris. The capital of France is"
    penalised = Sampling(temperature=0, presence_penalty=1000.0, repeat_last_n=-1)
    plain = worker.answer(request("a", prompt, max_tokens=1)).text
    other = worker.answer(request("b", prompt, max_tokens=1, sampling=penalised)).text
    assert plain == " Paris"
    assert other != plain


def test_cancel_in_a_long_prefill(worker: WorkerProcess) -> None:
    n = worker.accepted(request("c", LONG, max_tokens=-1))
    assert n > 150
    worker.cancel("c")
    # After the seven steps of its prompt its first token would come before the end.
    end = worker.expect(Finished)
    assert (end.id, end.reason, end.completion_tokens) == ("c", "cancelled", 0)


def test_cancel_while_decoding_frees_the_slot(worker: WorkerProcess) -> None:
    for i in range(6):
        name = f"c{i}"
        worker.accepted(request(name, "Once upon a time", max_tokens=-1, ignore_eos=True))
        worker.expect(Step)
        worker.cancel(name)
        (answer,) = worker.collect([name])
        assert answer.end.reason == "cancelled"
    # The cells are free again too: this needs nearly all of them.
    assert worker.answer(request("all", [100] * 250, max_tokens=4)).end.reason == "length"


def test_an_unknown_cancel_is_ignored(worker: WorkerProcess) -> None:
    worker.cancel("nobody")
    assert worker.answer(request("x", "Once", max_tokens=1)).end.reason == "length"


def test_too_long_a_prompt_is_rejected_with_both_numbers(worker: WorkerProcess) -> None:
    rejected = worker.rejected(request("l", [100] * 257))
    assert "257 tokens" in rejected.message
    assert "256" in rejected.message
    assert rejected.param == "prompt"


def test_tokens_outside_the_vocabulary_are_rejected(worker: WorkerProcess) -> None:
    assert "49152" in worker.rejected(request("v", [5, 49_152])).message
    assert "-1" in worker.rejected(request("v", [-1])).message
    bias = Sampling(logit_bias={1 << 40: 1.0})
    assert worker.rejected(request("v", "x", sampling=bias)).param == "logit_bias"


def test_an_empty_prompt_needs_a_bos(worker: WorkerProcess, gemma3: Path) -> None:
    assert "empty" in worker.rejected(request("e", "")).message
    assert "empty" in worker.rejected(request("e", [])).message
    with loaded_worker(gemma3, n_ctx=256, residency="lazy") as (with_bos, _):
        answer = with_bos.answer(request("e", "", max_tokens=2))
        assert answer.end.prompt_tokens == 1
        # A text that brings its own BOS gets no second one.
        assert with_bos.answer(request("b", "<bos>a", max_tokens=1)).end.prompt_tokens == 2


def test_more_requests_than_slots_are_rejected(worker: WorkerProcess) -> None:
    running = [f"r{i}" for i in range(4)]
    for name in running:
        worker.send(request(name, "1, 2, 3,", max_tokens=-1, ignore_eos=True))
    worker.send(request("fifth", "Once"))
    message = worker.receive()
    while isinstance(message, Accepted | Step):
        message = worker.receive()
    assert isinstance(message, Rejected)
    assert "4 slots" in message.message
    for name in running:
        worker.cancel(name)
    assert {answer.end.reason for answer in worker.collect(running)} == {"cancelled"}


def test_megabytes_of_text_are_refused_untokenised(worker: WorkerProcess) -> None:
    assert "8000000 bytes" in worker.rejected(request("huge", "a b c d " * 10**6)).message


def test_greedy_does_not_depend_on_the_slices(smollm2: Path, worker: WorkerProcess) -> None:
    expected = worker.answer(request("g", LONG, max_tokens=24)).text
    with loaded_worker(smollm2, n_batch=24, n_ubatch=24) as (other, _):
        assert other.answer(request("g", LONG, max_tokens=24)).text == expected


def test_neighbours_do_not_change_greedy_tokens(worker: WorkerProcess) -> None:
    """Bit for bit on this model's kernels, while all run. When one ends the others fill its
    cells, attention sums in another order, and logits move by up to 1.1 (measured; on gemma-3
    in any batch). So these are prompts whose next token leads by more than that."""
    prompts = ["1, 2, 3, 4,", "10, 20, 30, 40,", "a, b, c, d, e,"]
    alone = [worker.answer(request("a", p)).text for p in prompts]
    together = worker.answers(*(request(f"t{i}", p) for i, p in enumerate(prompts)))
    assert [answer.text for answer in together] == alone
    assert alone[1].startswith(" 50, 60, 70")
