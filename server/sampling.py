"""Sampling parameters as requests carry them, over the model's defaults."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from manifests.manifest import INT32_MAX, SamplingOptions
from server.grammars import check_grammar
from server.protocol import Sampling
from server.schema import Schema

# 2**32 - 1 asks llama.cpp for a random seed.
_SEEDS = 2**32 - 1


def _bias(value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > 4096:
        raise ValueError("must be an object of at most 4096 token ids")
    for token, bias in value.items():
        if not (token.isdecimal() and token.isascii() and len(token) < 10):
            raise ValueError(f"{token[:20]!r} is no token id")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= 100:
            raise ValueError(f"the bias of token {token} must be a number from -100 to 100")
    return {int(token): float(bias) for token, bias in value.items()}


def _breakers(value: Any) -> Any:
    """JSON's lists become tuples."""
    return tuple(value) if isinstance(value, list) else value


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("has a NUL character")
    return text


# 40 bytes is what llama.cpp takes of one; each is looked up in the whole vocabulary.
Breaker = Annotated[str, Field(min_length=1, max_length=40), AfterValidator(_without_nul)]


class SamplingFields(SamplingOptions, Schema):
    """Every field None: the model's default holds. `stop` replaces the model's list."""

    logit_bias: Annotated[dict[int, float] | None, PlainValidator(_bias)] = None
    dry_multiplier: Annotated[float | None, Field(ge=0, le=100)] = None
    dry_base: Annotated[float | None, Field(ge=1, le=100)] = None
    dry_allowed_length: Annotated[int | None, Field(ge=0, le=INT32_MAX)] = None
    dry_penalty_last_n: Annotated[int | None, Field(ge=-1, le=INT32_MAX)] = None
    dry_sequence_breakers: (
        Annotated[tuple[Breaker, ...], BeforeValidator(_breakers), Field(max_length=8)] | None
    ) = None
    xtc_probability: Annotated[float | None, Field(ge=0, le=1)] = None
    xtc_threshold: Annotated[float | None, Field(ge=0, le=1)] = None
    grammar: Annotated[str, AfterValidator(check_grammar)] | None = None


_FIELDS = tuple(name for name in SamplingFields.model_fields if name != "stop")


def resolve(defaults: Sampling, asked: SamplingFields) -> Sampling:
    """The request's values where it gives any, else the model's."""
    given = {name: getattr(asked, name) for name in _FIELDS}
    changes = {name: value for name, value in given.items() if value is not None}
    return normal_seed(msgspec.structs.replace(defaults, **changes))


def normal_seed(sampling: Sampling) -> Sampling:
    """-1 is None, every other seed one that llama.cpp takes."""
    if sampling.seed is None:
        return sampling
    seed = None if sampling.seed == -1 else sampling.seed % _SEEDS
    return msgspec.structs.replace(sampling, seed=seed)


def nth(sampling: Sampling, index: int) -> Sampling:
    """The sampling of the index-th of several answers: each its own seed."""
    if sampling.seed is None or index == 0:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + index) % _SEEDS)
