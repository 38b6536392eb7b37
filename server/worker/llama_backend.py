"""The backend on llama.cpp: slices into its batch, requests into its samplers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from server.protocol import Sampling
from server.worker import sampling as chains
from server.worker.backend import TokenSampler
from server.worker.llama import RANDOM_SEED, Batch, Context, Model, Sampler
from server.worker.slots import Slice, Tokens


class LlamaBackend:
    """Implements backend.Backend. Valid as long as the model and the context are open."""

    def __init__(self, model: Model, context: Context, n_slots: int) -> None:
        self._context = context
        self._batch = Batch(context.n_batch)
        self._rows: list[int] = []
        self._vocab = model.vocab
        self.n_ctx = context.n_ctx
        self.n_slots = n_slots
        self.n_vocab = model.vocab.n_tokens
        # One ubatch: llama.cpp computes no faster in longer calls on a CPU, and a cancel or
        # a new request has to wait for the call.
        self.step_tokens = max(context.n_ubatch, n_slots)
        self.tokenize = self._vocab.tokenize
        self.piece = self._vocab.piece
        self.is_end = self._vocab.is_end

    @cached_property
    def longest_token(self) -> int:
        """On demand, as it takes a call for each of the vocabulary."""
        return self._vocab.longest_token()

    @cached_property
    def _ends(self) -> list[int]:
        """All tokens that end a generation. A call for each of the vocabulary, so on demand."""
        return [token for token in range(self.n_vocab) if self.is_end(token)]

    def sampler(self, sampling: Sampling, prompt: Tokens, ignore_eos: bool) -> TokenSampler:
        chain = Sampler(self.n_vocab)
        chains.build(
            chain,
            sampling,
            n_ctx=self.n_ctx,
            random_seed=RANDOM_SEED,
            banned=self._ends if ignore_eos else (),
        )
        window = chains.penalty_window(sampling, self.n_ctx)
        for token in prompt[-window:].tolist() if window else ():
            chain.accept(token)
        return _LlamaSampler(chain, self._context, self._rows)

    def decode(self, slices: Sequence[Slice]) -> int:
        self._batch.clear()
        self._rows[:] = [
            self._batch.add(
                piece.sequence.take(piece.n_tokens),
                piece.sequence.n_past,
                piece.sequence.slot,
                output=piece.samples,
            )
            for piece in slices
        ]
        return self._context.decode(self._batch)

    def forget(self, slot: int) -> None:
        self._context.forget(slot)


class _LlamaSampler:
    def __init__(self, chain: Sampler, context: Context, rows: list[int]) -> None:
        self._chain = chain
        self._context = context
        self._rows = rows

    def draw(self, row: int) -> int:
        return self._chain.sample(self._context, self._rows[row])

    def close(self) -> None:
        self._chain.close()
