"""The backend on llama.cpp: slices into its batch, requests into its samplers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from server.protocol import Likelihood, Sampling, TokenLogprobs
from server.worker import sampling as chains
from server.worker.backend import NO_TOKEN, TokenSampler
from server.worker.llama import (
    RANDOM_SEED,
    Batch,
    Candidates,
    Context,
    Grammar,
    Model,
    NativeError,
    Sampler,
)
from server.worker.logprobs import likeliest, log_softmax
from server.worker.native_log import NativeLog
from server.worker.refusals import RequestRefused
from server.worker.slots import Slice, Tokens


class LlamaBackend:
    """Implements backend.Backend. Valid as long as the model and the context are open."""

    def __init__(
        self, model: Model, context: Context, n_slots: int, prefill_slice: int, log: NativeLog
    ) -> None:
        self._context = context
        self._log = log
        self._batch = Batch(context.n_batch)
        self._rows: list[int] = []
        self._vocab = model.vocab
        self.n_ctx = context.n_ctx
        self.n_slots = n_slots
        self.n_vocab = model.vocab.n_tokens
        # One ubatch: llama.cpp computes no faster in longer calls on a CPU, and a cancel or
        # a new request has to wait for the call.
        self.step_tokens = max(context.n_ubatch, n_slots)
        self.prefill_slice = prefill_slice
        self.whole_states = context.whole_states
        self.reaches = context.reaches
        self.keep = context.keep
        self.share = context.share
        self.forget = context.forget
        self.tokenize = self._vocab.tokenize
        self.piece = self._vocab.piece
        self.is_end = self._vocab.ends.__contains__
        self.longest_token = self._vocab.longest_token

    def sampler(self, sampling: Sampling, prompt: Tokens, ignore_eos: bool) -> TokenSampler:
        grammar = self._grammar(sampling.grammar) if sampling.grammar else None
        banned = sorted(self._vocab.ends) if ignore_eos else ()
        chain = Sampler(self._vocab)
        chains.build(
            chain,
            sampling,
            n_ctx=self.n_ctx,
            random_seed=RANDOM_SEED,
            banned=banned,
        )
        window = chains.history_window(sampling, self.n_ctx)
        for token in prompt[-window:].tolist() if window else ():
            chain.accept(token)
        free = _LlamaSampler(chain, self._context, self._rows)
        if grammar is None:
            return free
        return _GrammarSampler(free, grammar, self._candidates, banned)

    def _grammar(self, text: str) -> Grammar:
        try:
            return Grammar(self._vocab, text, self._log)
        except NativeError as error:
            raise RequestRefused(f"llama.cpp refuses the grammar: {error}", "grammar") from error

    @cached_property
    def _candidates(self) -> Candidates:
        """For the samplers of all requests, one after the other."""
        return Candidates(self.n_vocab)

    def logprobs(self, row: int, token: int, n_top: int) -> TokenLogprobs:
        of = log_softmax(self._context.logits(self._rows[row], self.n_vocab))
        drawn, *top = (
            Likelihood(self._vocab.piece(each, special=True), float(of[each]))
            for each in (token, *likeliest(of, n_top))
        )
        return TokenLogprobs(drawn, top)

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


class _LlamaSampler:
    def __init__(self, chain: Sampler, context: Context, rows: list[int]) -> None:
        self.chain = chain
        self._context = context
        self._rows = rows

    def draw(self, row: int) -> int:
        return self.chain.sample(self._context, self._rows[row])

    def fill(self, candidates: Candidates, row: int) -> None:
        candidates.fill(self._context, self._rows[row])

    def close(self) -> None:
        self.chain.close()


class _GrammarSampler:
    """As llama-server: draws freely, and only if the grammar does not admit the token asks it
    about the whole vocabulary, which takes far longer."""

    def __init__(
        self,
        free: _LlamaSampler,
        grammar: Grammar,
        candidates: Candidates,
        banned: Sequence[int],
    ) -> None:
        self._free = free
        self._grammar = grammar
        self._candidates = candidates
        self._banned = list(banned)

    def draw(self, row: int) -> int:
        try:
            token = self._choose(row)
            if token != NO_TOKEN:
                self._free.chain.accept(token)
                self._grammar.accept(token)
        except NativeError as error:
            message = f"the grammar cannot be followed any further: {error}"
            raise RequestRefused(message, "grammar") from error
        return token

    def close(self) -> None:
        self._free.close()
        self._grammar.close()

    def _choose(self, row: int) -> int:
        candidates = self._candidates
        self._free.fill(candidates, row)
        token = self._free.chain.choose(candidates)
        candidates.only(token)
        if self._grammar.restrict(candidates):
            return token
        self._free.fill(candidates, row)
        candidates.ban(self._banned)
        if self._grammar.restrict(candidates):
            return self._free.chain.choose(candidates)
        return NO_TOKEN
