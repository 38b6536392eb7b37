"""What the engine needs of a model: the seam between its decisions and llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from server.protocol import Sampling, TokenLogprobs
from server.worker.slots import Slice, Tokens

DECODED = 0
NO_CELLS = 1
"""The KV cache had no room for the batch; nothing changed."""
NO_TOKEN = -1


class TokenSampler(Protocol):
    """Draws the tokens of one request."""

    def draw(self, row: int) -> int:
        """A token from the logits behind the slice at `row` of the last decode; NO_TOKEN where
        the request's grammar admits none. Raises RequestRefused for a grammar that cannot be
        followed any further."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    n_ctx: int
    """KV cells, shared by all slots."""
    n_slots: int
    n_vocab: int
    step_tokens: int
    """Tokens that one decode should take at most."""
    prefill_slice: int
    """Tokens of prompts that it should take at most while a sequence decodes."""
    whole_states: bool
    """The cells of a slot can neither be cut back nor shared, as in recurrent models."""
    longest_token: int
    """Bytes of text that one token stands for at most."""

    def tokenize(self, text: str) -> Tokens: ...

    def piece(self, token: int) -> bytes: ...

    def is_end(self, token: int) -> bool: ...

    def sampler(self, sampling: Sampling, prompt: Tokens, ignore_eos: bool) -> TokenSampler:
        """Raises RequestRefused for a grammar that is none."""
        ...

    def logprobs(self, row: int, token: int, n_top: int) -> TokenLogprobs:
        """How likely the token drawn at `row` was, and the `n_top` likeliest beside it."""
        ...

    def decode(self, slices: Sequence[Slice]) -> int:
        """DECODED, NO_CELLS, or another number for a failure that may have run half-way."""
        ...

    def reaches(self, slot: int, n: int) -> bool:
        """Whether a token after the first `n` of the slot would see all cells it attends to.
        A sliding window leaves only the last of them."""
        ...

    def keep(self, slot: int, n: int) -> None:
        """Frees all but the slot's first `n` cells."""
        ...

    def share(self, source: int, slot: int, n: int) -> None:
        """Gives an empty slot the first `n` cells of another; they exist once, for both."""
        ...

    def forget(self, slot: int) -> None:
        """Frees the KV cells of a slot."""
        ...
