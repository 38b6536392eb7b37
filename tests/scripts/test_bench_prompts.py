"""Prompts of bench_serving: none twice, no two that begin alike, the same for each server."""

from __future__ import annotations

from itertools import pairwise

from bench.prompts import WORDS, Prompts


def test_no_prompt_is_made_twice_nor_shares_its_beginning() -> None:
    prompts = Prompts(seed=1, round_=0)
    texts = [prompts.text(8) for _ in range(10_000)]
    openings = {tuple(text.split()[:3]) for text in texts}
    assert len(openings) == len(texts)
    assert all(a.split()[0] != b.split()[0] for a, b in pairwise(texts))


def test_rounds_and_seeds_share_no_prompt() -> None:
    drawn = [Prompts(seed, round_) for seed in (1, 2) for round_ in range(-1, 5)]
    texts = [prompts.text(40) for prompts in drawn for _ in range(200)]
    assert len(set(texts)) == len(texts)


def test_every_server_of_a_round_gets_the_same() -> None:
    first, second = Prompts(3, 2, 0.9), Prompts(3, 2, 0.9)
    assert [first.text(n) for n in (5, 50)] == [second.text(n) for n in (5, 50)]


def test_the_length_follows_the_tokens_and_the_models_words_per_token() -> None:
    assert len(Prompts(1, 0).text(4000).split()) == 4000
    assert len(Prompts(1, 0, words_per_token=0.5).text(4000).split()) == 2000
    assert len(Prompts(1, 0).text(1).split()) == 4


def test_the_words_differ() -> None:
    assert len(set(WORDS)) == len(WORDS)
