"""The sequences in the slots, and which of their tokens the next decode takes. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


class Sequence:
    """The tokens of one request: the prompt, then what was sampled.

    `n_known` tokens are known, the first `n_past` of them are in the KV cache. A sequence that
    is one behind decodes; one that is further behind still reads its prompt, or reads again
    what it had to give up.
    """

    slot: int
    """Set while it runs."""
    n_shared = 0
    """The first of its cells that it took from another slot's."""

    def __init__(self, prompt: Tokens, max_tokens: int, n_ctx: int) -> None:
        self.n_prompt = len(prompt)
        room = n_ctx - self.n_prompt
        # The last token sampled needs no cell: it is not decoded any more.
        self.max_new = room + 1 if max_tokens < 0 else min(max_tokens, room + 1)
        self._tokens = np.empty(self.n_prompt + self.max_new, dtype=np.int32)
        self._tokens[: self.n_prompt] = prompt
        self.n_known = self.n_prompt
        self.n_past = 0

    @property
    def behind(self) -> int:
        return self.n_known - self.n_past

    @property
    def generated(self) -> int:
        return self.n_known - self.n_prompt

    @property
    def exhausted(self) -> bool:
        """All tokens that were asked for, or that fit, have been sampled."""
        return self.generated == self.max_new

    @property
    def known(self) -> Tokens:
        """A view."""
        return self._tokens[: self.n_known]

    @property
    def in_cells(self) -> Tokens:
        """A view."""
        return self._tokens[: self.n_past]

    def take(self, n: int) -> Tokens:
        """The next `n` tokens to decode. A view: valid until the sequence ends."""
        return self._tokens[self.n_past : self.n_past + n]

    def append(self, token: int) -> None:
        self._tokens[self.n_known] = token
        self.n_known += 1

    def __repr__(self) -> str:
        return f"<{self.n_past}/{self.n_known}, {self.generated} new>"


@dataclass(frozen=True)
class Slice:
    """A run of one sequence's tokens in a decode."""

    sequence: Sequence
    n_tokens: int
    samples: bool
    """It reaches the last known token, and another one is wanted."""


def plan_step(sequences: Collection[Sequence], budget: int, prefill_slice: int) -> list[Slice]:
    """The next decode, of `budget` tokens at most: one of every decoding sequence, then prompts.

    While any decodes, prompts get `prefill_slice` tokens together, which bounds how long a
    step takes and so the time between tokens.
    """
    slices = [Slice(s, 1, not s.exhausted) for s in sequences if s.behind == 1]
    reading = [s for s in sequences if s.behind > 1]
    left = budget - len(slices)
    shares = prompt_shares(
        [s.behind for s in reading], min(left, prefill_slice) if slices else left
    )
    for s, n in zip(reading, shares, strict=True):
        if n:
            slices.append(Slice(s, n, n == s.behind and not s.exhausted))
    return slices


def prompt_shares(wants: list[int], total: int) -> list[int]:
    """`total` tokens for prompts that want so many more, oldest first.

    What is shortest is read first, which gives the least mean time to the first token; half is
    the oldest's, so that short ones that keep coming do not hold up a long one. Prompts of one
    length are thus read one after the other: in equal parts, all would end as late as the last.
    """
    if not wants:
        return []
    shares = [0] * len(wants)
    shares[0] = min(wants[0], -(-total // 2))
    total -= shares[0]
    for i in sorted(range(len(wants)), key=lambda i: wants[i] - shares[i]):
        more = min(wants[i] - shares[i], total)
        shares[i] += more
        total -= more
    return shares
