"""From the vectors of a text's tokens to the one vector of the text."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from server.protocol import Pooling
from server.worker.refusals import RequestRefused

Rows = npt.NDArray[np.float32]
How = Literal["mean", "cls", "last"]

_NAMED: dict[int | None, How | None] = {None: None, 0: None, 1: "mean", 2: "cls", 3: "last"}
"""llama.cpp's numbers, as GGUFs have them under <arch>.pooling_type."""
_RANK = 4


def resolve_pooling(asked: Pooling, named: int | None, *, causal: bool) -> How:
    """How to pool. Raises RequestRefused for a GGUF that wants what is no pooling.

    A causal model that names nothing is pooled by its last token, as only that one has seen the
    whole text; another by the mean, as sentence-transformers does.
    """
    if asked != "model":
        return asked
    if named in _NAMED:
        return _NAMED[named] or ("last" if causal else "mean")
    kind = "a reranker" if named == _RANK else f"pooled in a way unknown here ({named})"
    raise RequestRefused(
        f"the model is {kind} and makes no embeddings, unless the loader option pooling is set "
        "to mean, cls or last",
        "model",
    )


class Pool:
    """The tokens' vectors of one text, as they come."""

    def __init__(self, how: How) -> None:
        self._how = how
        self._n = 0
        self._sum: npt.NDArray[np.float64] | None = None

    def add(self, rows: Rows) -> None:
        """(tokens, n_embd), the next ones of the text."""
        if self._how == "mean":
            summed = rows.sum(axis=0, dtype=np.float64)
            self._sum = summed if self._sum is None else self._sum + summed
        elif self._how == "last" or self._sum is None:
            self._sum = rows[-1 if self._how == "last" else 0].astype(np.float64)
        self._n += len(rows)

    def unit(self, dimensions: int | None) -> bytes:
        """The text's vector, cut to its first `dimensions`, of length 1: float32, little-endian.
        A vector of nothing but zeros stays that. Raises ValueError if it has no length."""
        assert self._sum is not None
        # The mean is the sum but for its length.
        vector = self._sum[:dimensions]
        length = float(np.linalg.norm(vector))
        if not np.isfinite(length):
            raise ValueError("the model gave numbers that are not finite")
        return (vector / length if length else vector).astype("<f4").tobytes()
