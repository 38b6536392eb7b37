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
    def add_dry(
        self, multiplier: float, base: float, allowed: int, last_n: int, breakers: tuple[str, ...]
    ) -> None: ...
    def add_top_k(self, k: int) -> None: ...
    def add_typical(self, p: float) -> None: ...
    def add_top_p(self, p: float) -> None: ...
    def add_min_p(self, p: float) -> None: ...
    def add_xtc(self, probability: float, threshold: float, seed: int) -> None: ...
    def add_temperature(self, temperature: float) -> None: ...
    def add_mirostat(self, version: int, tau: float, eta: float, seed: int) -> None: ...
    def add_draw(self, seed: int) -> None: ...
    def add_greedy(self) -> None: ...


def build(
    chain: Chain, sampling: Sampling, *, n_ctx: int, random_seed: int, banned: Iterable[int]
) -> None:
    """Fills the chain in llama-server's order. A sampler that would change nothing is left out.

    `banned` tokens are never drawn. Greedy keeps bias, penalties and DRY and skips the rest, which
    could not change the likeliest token (typical_p and XTC could, and are for drawing only).
    Mirostat sets its own cut, and stands alone but for bias and temperature.
    """
    bias = sampling.logit_bias | dict.fromkeys(banned, -math.inf)
    if bias:
        chain.add_logit_bias(bias)
    seed = random_seed if sampling.seed is None else sampling.seed
    if sampling.mirostat and sampling.temperature > 0:
        _add_temperature(chain, sampling)
        chain.add_mirostat(sampling.mirostat, sampling.mirostat_tau, sampling.mirostat_eta, seed)
        return
    _add_history(chain, sampling, n_ctx)
    if sampling.temperature <= 0:
        chain.add_greedy()
    else:
        _add_draw(chain, sampling, seed)


def history_window(sampling: Sampling, n_ctx: int) -> int:
    """Last tokens of the prompt that the samplers have to know."""
    return max(penalty_window(sampling, n_ctx), dry_window(sampling, n_ctx))


def penalty_window(sampling: Sampling, n_ctx: int) -> int:
    """Tokens that the penalties look back on; 0 where there are none."""
    neutral = (
        sampling.repeat_penalty == 1.0
        and sampling.frequency_penalty == 0.0
        and sampling.presence_penalty == 0.0
    )
    if neutral:
        return 0
    return _window(sampling.repeat_last_n, n_ctx)


def dry_window(sampling: Sampling, n_ctx: int) -> int:
    """Tokens that DRY looks back on; 0 where it is off."""
    return _window(sampling.dry_penalty_last_n, n_ctx) if sampling.dry_multiplier else 0


def _window(last_n: int, n_ctx: int) -> int:
    return n_ctx if last_n < 0 else min(last_n, n_ctx)


def _add_history(chain: Chain, sampling: Sampling, n_ctx: int) -> None:
    """What looks back on the tokens so far."""
    last_n = penalty_window(sampling, n_ctx)
    if last_n:
        chain.add_penalties(
            last_n, sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty
        )
    last_n = dry_window(sampling, n_ctx)
    if last_n:
        chain.add_dry(
            sampling.dry_multiplier,
            sampling.dry_base,
            sampling.dry_allowed_length,
            last_n,
            sampling.dry_sequence_breakers,
        )


def _add_draw(chain: Chain, sampling: Sampling, seed: int) -> None:
    if sampling.top_k > 0:
        chain.add_top_k(sampling.top_k)
    if sampling.typical_p < 1:
        chain.add_typical(sampling.typical_p)
    if sampling.top_p < 1:
        chain.add_top_p(sampling.top_p)
    if sampling.min_p > 0:
        chain.add_min_p(sampling.min_p)
    if sampling.xtc_probability > 0:
        chain.add_xtc(sampling.xtc_probability, sampling.xtc_threshold, seed)
    _add_temperature(chain, sampling)
    chain.add_draw(seed)


def _add_temperature(chain: Chain, sampling: Sampling) -> None:
    if sampling.temperature != 1:
        chain.add_temperature(sampling.temperature)
