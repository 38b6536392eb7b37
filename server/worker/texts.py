"""The inputs of an embedding request: as tokens, one at a time, when their turn comes.

Tokenising 2,048 long texts takes seconds, in which no slot would make progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from server.protocol import Embed
from server.worker.refusals import RequestRefused
from server.worker.slots import Tokens


class Tokenizer(Protocol):
    n_tokens: int
    adds_end: bool

    @property
    def longest_token(self) -> int: ...

    def tokenize(self, text: str) -> Tokens: ...


@dataclass(frozen=True)
class Limit:
    """The longest text that can be embedded."""

    n_tokens: int
    remedy: str
    """What makes room for longer ones."""


class Texts:
    """The inputs of one request, in their order."""

    def __init__(self, request: Embed, tokenizer: Tokenizer, limit: Limit) -> None:
        self._inputs: Sequence[str | list[int]] = request.inputs
        self._truncate = request.truncate
        self._tokenizer = tokenizer
        self._limit = limit
        self._next = 0
        self._tokens: Tokens | None = None

    def __len__(self) -> int:
        """How many are left."""
        return len(self._inputs) - self._next

    def peek(self) -> Tokens:
        """The next one. Raises RequestRefused if it cannot be embedded as asked."""
        if self._tokens is None:
            self._tokens = self._read(self._inputs[self._next])
        return self._tokens

    def take(self) -> Tokens:
        tokens = self.peek()
        self._tokens = None
        self._next += 1
        return tokens

    def _read(self, text: str | list[int]) -> Tokens:
        is_text = isinstance(text, str)
        tokens = self._tokenize(text) if isinstance(text, str) else self._check_ids(text)
        if len(tokens) == 0:
            raise self._refusal("is empty")
        n_most = self._limit.n_tokens
        if len(tokens) <= n_most:
            return tokens
        if not self._truncate:
            raise self._too_long(f"{len(tokens)} tokens")
        if is_text and self._tokenizer.adds_end and n_most > 1:
            return np.concatenate([tokens[: n_most - 1], tokens[-1:]])
        return tokens[:n_most]

    def _tokenize(self, text: str) -> Tokens:
        # Tokenising a few megabytes takes a second, in which nothing else makes progress.
        n_bytes = len(text.encode())
        most_bytes = (self._limit.n_tokens + 1) * self._tokenizer.longest_token
        if n_bytes > most_bytes:
            if not self._truncate:
                raise self._too_long(f"{n_bytes} bytes")
            text = text[:most_bytes]
        return self._tokenizer.tokenize(text)

    def _check_ids(self, tokens: list[int]) -> Tokens:
        n_vocab = self._tokenizer.n_tokens
        for token in (min(tokens), max(tokens)) if tokens else ():
            if not 0 <= token < n_vocab:
                raise self._refusal(f"names token {token}; this model has 0 to {n_vocab - 1}")
        return np.array(tokens, dtype=np.int32)

    def _too_long(self, size: str) -> RequestRefused:
        return self._refusal(
            f"has {size}, and this model takes {self._limit.n_tokens} tokens: shorten it"
            + (f", or {self._limit.remedy}" if self._limit.remedy else "")
        )

    def _refusal(self, fault: str) -> RequestRefused:
        return RequestRefused(f"input {self._next} {fault}", "input")
