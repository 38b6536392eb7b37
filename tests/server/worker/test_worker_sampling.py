"""Which samplers a request gets."""

from __future__ import annotations

import math
from typing import Any

from server.protocol import Sampling
from server.worker.sampling import build, penalty_window

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
            logit_bias={5: 1.0}, repeat_penalty=1.1, typical_p=0.9, temperature=0.5, seed=3
        )
    ]
    assert names == [
        "logit_bias",
        "penalties",
        "top_k",
        "typical",
        "top_p",
        "min_p",
        "temperature",
        "draw",
    ]


def test_greedy_keeps_bias_and_penalties_only() -> None:
    calls = chain(temperature=0, frequency_penalty=0.5, typical_p=0.2, banned=(7,))
    assert calls == [
        ("logit_bias", {7: -math.inf}),
        ("penalties", 64, 1.0, 0.5, 0.0),
        ("greedy",),
    ]


def test_what_changes_nothing_is_left_out() -> None:
    assert chain(top_k=0, top_p=1, min_p=0, temperature=1) == [("draw", SEED)]


def test_the_window_of_the_penalties() -> None:
    assert penalty_window(Sampling(repeat_last_n=10), 100) == 0
    assert penalty_window(Sampling(repeat_penalty=1.1, repeat_last_n=10), 100) == 10
    assert penalty_window(Sampling(repeat_penalty=1.1, repeat_last_n=-1), 100) == 100
    assert penalty_window(Sampling(repeat_penalty=1.1, repeat_last_n=10**9), 100) == 100
    assert penalty_window(Sampling(repeat_penalty=1.1, repeat_last_n=0), 100) == 0
