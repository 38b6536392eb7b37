"""Whether a request can run as asked, and its prompt as tokens."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from server.protocol import Generate
from server.worker.backend import Backend
from server.worker.refusals import RequestRefused
from server.worker.slots import Tokens

_REMEDY = "shorten the prompt, or load the model with a larger n_ctx"


def prompt_tokens(request: Generate, backend: Backend) -> Tokens:
    """Raises RequestRefused."""
    _check_ids(request.sampling.logit_bias, backend.n_vocab, "logit_bias")
    if isinstance(request.prompt, str):
        _check_bytes(len(request.prompt.encode()), backend)
        tokens = backend.tokenize(request.prompt)
        _check_length(len(tokens), backend.n_ctx)
        return tokens
    _check_length(len(request.prompt), backend.n_ctx)
    _check_ids(request.prompt, backend.n_vocab, "prompt")
    return np.array(request.prompt, dtype=np.int32)


def _check_bytes(n_bytes: int, backend: Backend) -> None:
    """Tokenising takes a second for a few megabytes, in which no slot makes progress."""
    if n_bytes > backend.n_ctx * backend.longest_token:
        n_least = -(-n_bytes // backend.longest_token)
        raise RequestRefused(
            f"the prompt has {n_bytes} bytes, so at least {n_least} tokens, and the context "
            f"{backend.n_ctx}: {_REMEDY}",
            "prompt",
        )


def _check_length(n_tokens: int, n_ctx: int) -> None:
    if n_tokens == 0:
        raise RequestRefused("the prompt is empty: this model needs at least one token", "prompt")
    if n_tokens > n_ctx:
        raise RequestRefused(
            f"the prompt has {n_tokens} tokens and the context {n_ctx}: {_REMEDY}",
            "prompt",
        )


def _check_ids(tokens: Collection[int], n_vocab: int, param: str) -> None:
    for token in (min(tokens), max(tokens)) if tokens else ():
        if not 0 <= token < n_vocab:
            raise RequestRefused(
                f"{param} names token {token}; this model has 0 to {n_vocab - 1}", param
            )
