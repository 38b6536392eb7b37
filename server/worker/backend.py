"""What the engine needs of a model: the seam between its decisions and llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from server.protocol import Sampling
from server.worker.slots import Slice, Tokens

DECODED = 0
NO_CELLS = 1
"""The KV cache had no room for the batch; nothing changed."""


class TokenSampler(Protocol):
    """Draws the tokens of one request."""

    def draw(self, row: int) -> int:
        """A token from the logits behind the slice at `row` of the last decode."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    n_ctx: int
    """KV cells, shared by all slots."""
    n_slots: int
    n_vocab: int
    step_tokens: int
    """Tokens that one decode should take at most."""

    @property
    def longest_token(self) -> int:
        """Bytes of text that one token stands for at most."""
        ...

    def tokenize(self, text: str) -> Tokens: ...

    def piece(self, token: int) -> bytes: ...

    def is_end(self, token: int) -> bool: ...

    def sampler(self, sampling: Sampling, prompt: Tokens, ignore_eos: bool) -> TokenSampler: ...

    def decode(self, slices: Sequence[Slice]) -> int:
        """DECODED, NO_CELLS, or another number for a failure that may have run half-way."""
        ...

    def forget(self, slot: int) -> None:
        """Frees the KV cells of a slot."""
        ...
