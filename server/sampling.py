"""Sampling parameters as requests carry them, over the model's defaults."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field, PlainValidator

from server.bodies import Schema
from server.protocol import Sampling

_INT32_MAX = 2**31 - 1
# 2**32 - 1 asks llama.cpp for a random seed.
_SEEDS = 2**32 - 1
MAX_STOPS = 32
MAX_STOP_CHARS = 1024


def _stops(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise ValueError(f"at most {MAX_STOPS} strings of at most {MAX_STOP_CHARS} characters")
    return tuple(stop for stop in stops if stop)


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


Stops = Annotated[tuple[str, ...] | None, PlainValidator(_stops)]


class SamplingFields(Schema):
    """Every field None: the model's default holds."""

    temperature: float | None = Field(default=None, ge=0, le=100)
    top_k: int | None = Field(default=None, ge=-1, le=_INT32_MAX)
    top_p: float | None = Field(default=None, ge=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    typical_p: float | None = Field(default=None, ge=0, le=1)
    repeat_penalty: float | None = Field(default=None, gt=0, le=100)
    repeat_last_n: int | None = Field(default=None, ge=-1, le=_INT32_MAX)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    """-1 draws a fresh one, as None does."""
    logit_bias: Annotated[dict[int, float] | None, PlainValidator(_bias)] = None
    stop: Stops = None
    """Replaces the model's list."""


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
