"""Which samplers a request gets."""

from __future__ import annotations

import math
from typing import Any

from server.protocol import Sampling
from server.worker.sampling import build, history_window, penalty_window

SEED = 0xFFFFFFFF


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name.removeprefix("add_"), *args))


def chain(banned: tuple[int, ...] = (), **changes: Any) -> list[tuple[Any, ...]]:
    recorder = Recorder()
    build(recorder, Sampling(**changes), n_ctx=100, random_seed=SEED, banned=banned)
    return recorder.calls


def test_defaults_are_llama_servers_in_its_order() -> None:
    assert chain() == [
        ("top_k", 40),
        ("top_p", 0.95),
        ("min_p", 0.05),
        ("temperature", 0.8),
        ("draw", SEED),
    ]


def test_all_of_them() -> None:
    names = [
        call[0]
        for call in chain(
            logit_bias={5: 1.0},
            repeat_penalty=1.1,
            dry_multiplier=0.8,
            typical_p=0.9,
            xtc_probability=0.5,
            temperature=0.5,
            seed=3,
        )
    ]
    assert names == [
        "logit_bias",
        "penalties",
        "dry",
        "top_k",
        "typical",
        "top_p",
        "min_p",
        "xtc",
        "temperature",
        "draw",
    ]


def test_greedy_keeps_bias_penalties_and_dry_only() -> None:
    calls = chain(
        temperature=0,
        frequency_penalty=0.5,
        dry_multiplier=0.8,
        typical_p=0.2,
        xtc_probability=1,
        mirostat=2,
        banned=(7,),
    )
    assert calls == [
        ("logit_bias", {7: -math.inf}),
        ("penalties", 64, 1.0, 0.5, 0.0),
        ("dry", 0.8, 1.75, 2, 64, ("\n", ":", '"', "*")),
        ("greedy",),
    ]


def test_mirostat_stands_alone_but_for_bias_and_temperature() -> None:
    calls = chain(
        mirostat=2, logit_bias={5: 1.0}, repeat_penalty=1.1, dry_multiplier=1, xtc_probability=1
    )
    assert calls == [
        ("logit_bias", {5: 1.0}),
        ("temperature", 0.8),
        ("mirostat", 2, 5.0, 0.1, SEED),
    ]
    assert chain(mirostat=1, mirostat_tau=3, mirostat_eta=0.2, temperature=1, seed=4) == [
        ("mirostat", 1, 3, 0.2, 4)
    ]


def test_xtc_gets_the_seed() -> None:
    assert ("xtc", 0.5, 0.2, 9) in chain(xtc_probability=0.5, xtc_threshold=0.2, seed=9)


def test_what_changes_nothing_is_left_out() -> None:
    assert chain(top_k=0, top_p=1, min_p=0, temperature=1) == [("draw", SEED)]


def test_the_window_of_the_penalties() -> None:
    assert penalty_window(Sampling(repeat_last_n=10), 100) == 0
    assert penalty_window(Sampling(repeat_penalty=1.1, repeat_last_n=10), 100) == 10
    assert penalty_window(Sampling(repeat_penalty=1.1, repeat_last_n=-1), 100) == 100
    assert penalty_window(Sampling(repeat_penalty=1.1, repeat_last_n=10**9), 100) == 100
    assert penalty_window(Sampling(repeat_penalty=1.1, repeat_last_n=0), 100) == 0


def test_the_samplers_know_as_many_tokens_as_any_looks_back_on() -> None:
    assert history_window(Sampling(), 100) == 0
    assert history_window(Sampling(dry_multiplier=1, dry_penalty_last_n=9), 100) == 9
    assert history_window(Sampling(dry_multiplier=1, dry_penalty_last_n=-1), 100) == 100
    both = Sampling(dry_multiplier=1, dry_penalty_last_n=9, repeat_penalty=2, repeat_last_n=12)
    assert history_window(both, 100) == 12
