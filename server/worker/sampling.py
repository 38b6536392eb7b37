"""Which of llama.cpp's samplers a request needs, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from server.protocol import Sampling


class Chain(Protocol):
    """A chain under construction; llama.Sampler is the real one."""

    def add_logit_bias(self, bias: dict[int, float]) -> None: ...
    def add_penalties(
        self, last_n: int, repeat: float, frequency: float, presence: float
    ) -> None: ...
    def add_top_k(self, k: int) -> None: ...
    def add_typical(self, p: float) -> None: ...
    def add_top_p(self, p: float) -> None: ...
    def add_min_p(self, p: float) -> None: ...
    def add_temperature(self, temperature: float) -> None: ...
    def add_draw(self, seed: int) -> None: ...
    def add_greedy(self) -> None: ...


def build(
    chain: Chain, sampling: Sampling, *, n_ctx: int, random_seed: int, banned: Iterable[int]
) -> None:
    """Fills the chain in llama-server's order. A sampler that would change nothing is left out.

    `banned` tokens are never drawn. Greedy keeps bias and penalties and skips the rest, which
    could not change the likeliest token (typical_p could, and is for drawing only).
    """
    bias = sampling.logit_bias | dict.fromkeys(banned, -math.inf)
    if bias:
        chain.add_logit_bias(bias)
    last_n = penalty_window(sampling, n_ctx)
    if last_n:
        chain.add_penalties(
            last_n, sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty
        )
    if sampling.temperature <= 0:
        chain.add_greedy()
    else:
        _add_draw(chain, sampling, random_seed)


def penalty_window(sampling: Sampling, n_ctx: int) -> int:
    """Tokens that the penalties look back on; 0 where there are none."""
    neutral = (
        sampling.repeat_penalty == 1.0
        and sampling.frequency_penalty == 0.0
        and sampling.presence_penalty == 0.0
    )
    if neutral:
        return 0
    return n_ctx if sampling.repeat_last_n < 0 else min(sampling.repeat_last_n, n_ctx)


def _add_draw(chain: Chain, sampling: Sampling, random_seed: int) -> None:
    if sampling.top_k > 0:
        chain.add_top_k(sampling.top_k)
    if sampling.typical_p < 1:
        chain.add_typical(sampling.typical_p)
    if sampling.top_p < 1:
        chain.add_top_p(sampling.top_p)
    if sampling.min_p > 0:
        chain.add_min_p(sampling.min_p)
    if sampling.temperature != 1:
        chain.add_temperature(sampling.temperature)
    chain.add_draw(random_seed if sampling.seed is None else sampling.seed)
