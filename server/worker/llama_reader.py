"""What reads texts for embeddings, on llama.cpp: its sizes, and what they cost."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from dataclasses import dataclass

from server.protocol import Pooling
from server.worker.llama import (
    ContextOptions,
    EmbeddingContext,
    Model,
    NativeError,
    open_embedding_context,
)
from server.worker.native_log import NativeLog
from server.worker.pooling import How, resolve_pooling
from server.worker.refusals import ContextRefused
from server.worker.texts import Limit

# llama.cpp has a row of logits for each token that it gives a vector for: in the compute buffer
# of a decoder, and in the output buffer of any model. Each of the two is held to about this.
_LOGITS_BYTES = 64 << 20
# Fewer would not keep the cores busy, however large the vocabulary.
_LEAST_TOKENS = 32
# Texts that share a batch cost attention between them too, which grows with the square.
_PACKED_TOKENS = 512
_SEQUENCES = 64
# Each has a state of its own, of megabytes, in recurrent and hybrid models.
_STATES = 4


def decoder_options(of_slots: ContextOptions, n_ctx: int, model: Model) -> ContextOptions:
    """For a model that also generates, in a context of n_ctx cells."""
    n_tokens = min(of_slots.n_ubatch, _tokens_at_once(model), n_ctx)
    n_most = _STATES if model.has_states else _SEQUENCES
    return dataclasses.replace(
        of_slots, n_ctx=n_ctx, n_batch=n_tokens, n_seq_max=min(n_tokens, n_most)
    )


def encoder_options(of_slots: ContextOptions, model: Model) -> ContextOptions:
    """For a model that only reads: a text has to fit into one ubatch, and into what the model
    was trained on, as it knows no positions beyond."""
    n_tokens = min(of_slots.n_ubatch, of_slots.n_ctx or model.n_ctx_train, model.n_ctx_train)
    return dataclasses.replace(
        of_slots, n_ctx=n_tokens, n_batch=n_tokens, n_seq_max=min(n_tokens, _SEQUENCES)
    )


@dataclass(frozen=True)
class ReaderOpener:
    """What it opens goes on `stack`."""

    model: Model
    of_slots: ContextOptions
    n_ctx: int | None
    """Cells of the slots' context; None: the model has none, as it only reads."""
    kv_bytes: int
    """Of the slots' context."""
    pooling: Pooling
    log: NativeLog
    stack: ExitStack

    def __call__(self) -> LlamaReader:
        """Raises RequestRefused, ContextRefused."""
        model = self.model
        how = resolve_pooling(self.pooling, model.named_pooling, causal=self.n_ctx is not None)
        if self.n_ctx is None:
            options = encoder_options(self.of_slots, model)
        else:
            options = decoder_options(self.of_slots, self.n_ctx, model)
        try:
            context = self.stack.enter_context(open_embedding_context(model, options, self.log))
        except NativeError as error:
            raise ContextRefused(f"no context for embeddings could be opened: {error}") from error
        return LlamaReader(model, context, options, how, self.kv_bytes + context.memory_bytes)


def _tokens_at_once(model: Model) -> int:
    return max(_LEAST_TOKENS, _LOGITS_BYTES // (4 * model.vocab.n_tokens))


class LlamaReader:
    """Implements embedding.Reader. Valid as long as the model and the context are open."""

    def __init__(
        self,
        model: Model,
        context: EmbeddingContext,
        options: ContextOptions,
        pooling: How,
        kv_bytes: int,
    ) -> None:
        """`options` are those of the context."""
        self.tokenizer = model.vocab
        self.pooling = pooling
        self.kv_bytes = kv_bytes
        self.n_embd = context.n_embd
        self.n_sequences = options.n_seq_max
        self.reads_whole = context.reads_whole
        self.n_cells = context.n_ctx if context.has_memory else None
        self.limit = _limit(model, context, options)
        packed = min(_PACKED_TOKENS, _tokens_at_once(model))
        self.step_tokens = min(packed, context.n_batch) if self.reads_whole else context.n_batch
        self.read = context.read
        self.forget = context.forget


def _limit(model: Model, context: EmbeddingContext, options: ContextOptions) -> Limit:
    if not context.reads_whole:
        return Limit(context.n_ctx, "load the model with a larger n_ctx")
    n_tokens = min(options.n_batch, context.n_batch)
    if not context.has_memory and n_tokens >= model.n_ctx_train:
        return Limit(n_tokens, "")
    return Limit(n_tokens, "load the model with a larger n_ubatch and n_ctx")
