"""How likely the drawn tokens were, told with the piece that their text begins in."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from server.protocol import TokenLogprobs

Logits = npt.NDArray[np.float32]


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Natural logarithms of the shares, which sum up to 1."""
    shifted = logits.astype(np.float64) - float(logits.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def likeliest(logprobs: npt.NDArray[np.float64], n: int) -> list[int]:
    """The n likeliest tokens, in that order; of equals the lower id first."""
    n = min(n, len(logprobs))
    if n == 0:
        return []
    floor = np.partition(logprobs, -n)[-n]
    found = np.flatnonzero(logprobs >= floor)
    order = np.argsort(-logprobs[found], kind="stable")
    return [int(token) for token in found[order][:n]]


class LogprobQueue:
    """Of one request. Text may be held back for a stop string, and never be told at all: then
    nor is what is known of its tokens."""

    def __init__(self, n_top: int) -> None:
        self.n_top = n_top
        """How many of the likeliest tokens are wanted."""
        self._held: deque[tuple[int, TokenLogprobs]] = deque()
        """With the byte of the text that the token begins at."""
        self._n_drawn = 0
        self._n_told = 0

    def push(self, logprobs: TokenLogprobs, n_bytes: int) -> None:
        """Takes a token that stands for so many bytes of text."""
        self._held.append((self._n_drawn, logprobs))
        self._n_drawn += n_bytes

    def take(self, text: str) -> list[TokenLogprobs]:
        """What belongs to the next piece."""
        self._n_told += len(text.encode())
        taken = []
        while self._held and self._held[0][0] < self._n_told:
            taken.append(self._held.popleft()[1])
        return taken

    def take_all(self) -> list[TokenLogprobs]:
        """What is left at an end that cuts off no text."""
        taken = [logprobs for _, logprobs in self._held]
        self._held.clear()
        return taken
