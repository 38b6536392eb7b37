"""Answers of the OpenAI routes."""

from __future__ import annotations

import msgspec

from server.calls import Ended
from server.routes.openai_logprobs import Logprobs


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TimingsBody(msgspec.Struct):
    """llama-server's figures, and what paging the request paid for.

    The prompt's `cache_n` tokens were in the KV cache, its `prompt_n` others were computed.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    major_faults: int
    read_bytes: int | None


class MessageBody(msgspec.Struct):
    role: str
    content: str


class Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class Choice(msgspec.Struct, omit_defaults=True):
    """One of message, delta or text is set; finish_reason null says that more comes."""

    index: int
    finish_reason: str | None
    message: MessageBody | None = None
    delta: Delta | None = None
    text: str | None = None
    logprobs: Logprobs | None = None


class Completion(msgspec.Struct, omit_defaults=True):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None
    timings: TimingsBody | None = None


class ModelBody(msgspec.Struct):
    id: str
    created: int
    object: str = "model"
    owned_by: str = "corral"


class ModelList(msgspec.Struct):
    data: list[ModelBody]
    object: str = "list"


def usage(ended: list[Ended], prompts: int) -> Usage:
    """The sum over all answers; a prompt that has several counts once, with their mean."""
    prompt_tokens = sum(one.prompt_tokens for one in ended) * prompts // len(ended)
    cached_tokens = sum(one.cached_tokens for one in ended) * prompts // len(ended)
    completion_tokens = sum(one.completion_tokens for one in ended)
    return Usage(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        PromptTokensDetails(cached_tokens),
    )


def timings(ended: Ended) -> TimingsBody:
    computed = ended.prompt_tokens - ended.cached_tokens
    prompt_ms = ended.timings.prompt_seconds * 1e3
    predicted_ms = ended.timings.predicted_seconds * 1e3
    return TimingsBody(
        ended.cached_tokens,
        computed,
        prompt_ms,
        _ratio(prompt_ms, computed),
        _ratio(computed * 1e3, prompt_ms),
        ended.completion_tokens,
        predicted_ms,
        _ratio(predicted_ms, ended.completion_tokens),
        _ratio(ended.completion_tokens * 1e3, predicted_ms),
        ended.timings.major_faults,
        ended.timings.read_bytes,
    )


def _ratio(over: float, under: float) -> float:
    return over / under if under else 0.0
