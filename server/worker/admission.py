"""Whether a request can run as asked, and its prompt as tokens."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from server.protocol import Generate, Sampling
from server.worker.backend import Backend
from server.worker.refusals import RequestRefused
from server.worker.slots import Tokens

# llama.cpp computes with 32-bit floats. Beyond these it makes NaNs of the logits, and
# asserts, which would end the process and with it every other request.
_LARGEST = 1e6
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
)


def prompt_tokens(request: Generate, backend: Backend) -> Tokens:
    """Raises RequestRefused."""
    _check_sampling(request.sampling, backend.n_vocab)
    if isinstance(request.prompt, str):
        tokens = backend.tokenize(request.prompt)
        _check_length(len(tokens), backend.n_ctx)
        return tokens
    _check_length(len(request.prompt), backend.n_ctx)
    _check_ids(request.prompt, backend.n_vocab, "prompt")
    return np.array(request.prompt, dtype=np.int32)


def _check_length(n_tokens: int, n_ctx: int) -> None:
    if n_tokens == 0:
        raise RequestRefused("the prompt is empty: this model needs at least one token", "prompt")
    if n_tokens > n_ctx:
        raise RequestRefused(
            f"the prompt has {n_tokens} tokens and the context {n_ctx}: "
            "shorten the prompt, or load the model with a larger n_ctx",
            "prompt",
        )


def _check_ids(tokens: Collection[int], n_vocab: int, param: str) -> None:
    for token in (min(tokens), max(tokens)) if tokens else ():
        if not 0 <= token < n_vocab:
            raise RequestRefused(
                f"{param} names token {token}; this model has 0 to {n_vocab - 1}", param
            )


def _check_sampling(sampling: Sampling, n_vocab: int) -> None:
    _check_ids(sampling.logit_bias, n_vocab, "logit_bias")
    for bias in sampling.logit_bias.values():
        _check_number(bias, "logit_bias")
    for name in _NUMBERS:
        _check_number(getattr(sampling, name), name)
    if not 0 < sampling.repeat_penalty <= _LARGEST:
        raise RequestRefused(
            f"repeat_penalty is {sampling.repeat_penalty}: it must be above 0", "repeat_penalty"
        )


def _check_number(value: float, param: str) -> None:
    # False for NaN too.
    if not abs(value) <= _LARGEST:
        raise RequestRefused(f"{param} is {value}: at most {_LARGEST:g} is allowed", param)
