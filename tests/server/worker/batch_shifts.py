"""Decodes sequences alone and as rows of a batch of 16, without the engine, and prints as JSON
by how much the logits of two likely tokens move against each other, for each token decoded.

`python batch_shifts.py MODEL TEXT`, a process of its own as llama.cpp needs one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
from worker_process import load_message

from server.worker import llama
from server.worker.loading import context_options
from server.worker.native_log import NativeLog
from server.worker.slots import Tokens

Logits = npt.NDArray[np.float32]

N_SEQS = 16
N_MEASURED = 4
N_TOKENS = 24
# Half-way the other sequences end and new ones take their cells: attention then sums in
# another order.
HALF = N_TOKENS // 2
# Of tokens less likely than these none is ever drawn.
N_LIKELY = 20


def shifts(model: llama.Model, text: str, contexts: list[llama.Context]) -> Iterator[float]:
    """`contexts` are one for all sequences and one for each that is measured."""
    crowd, *lone = contexts
    tokens = model.vocab.tokenize(text)
    runs = [tokens[11 * seq :][:N_TOKENS] for seq in range(N_SEQS)]
    batch = llama.Batch(N_SEQS)
    for at in range(N_TOKENS):
        if at == HALF:
            for seq in range(N_MEASURED, N_SEQS):
                crowd.forget(seq)
        begins = [HALF if at >= HALF and s >= N_MEASURED else 0 for s in range(N_SEQS)]
        decode(crowd, batch, [run[at : at + 1] for run in runs], [at - begin for begin in begins])
        for seq, context in enumerate(lone):
            decode(context, batch, [runs[seq][at : at + 1]], [at])
            n_vocab = model.vocab.n_tokens
            yield shift(context.logits(0, n_vocab), crowd.logits(seq, n_vocab))


def decode(
    context: llama.Context, batch: llama.Batch, tokens: Sequence[Tokens], at: Sequence[int]
) -> None:
    batch.clear()
    for seq, run in enumerate(tokens):
        batch.add(run, at[seq], seq, output=True)
    assert context.decode(batch) == 0


def shift(alone: Logits, among: Logits) -> float:
    likely = np.argpartition(alone, -N_LIKELY)[-N_LIKELY:]
    moved = (among - alone)[likely]
    return float(moved.max() - moved.min())


def main() -> None:
    _, file, text = sys.argv
    log = NativeLog()
    options = context_options(load_message(Path(file), n_ctx=256 * N_SEQS, n_slots=N_SEQS))
    with ExitStack() as stack:
        stack.enter_context(llama.open_library(log))
        model = stack.enter_context(
            llama.open_model([Path(file)], llama.ModelOptions(True, False, False, 0), log)
        )
        contexts = [
            stack.enter_context(llama.open_context(model, options, log))
            for _ in range(1 + N_MEASURED)
        ]
        print(json.dumps(list(shifts(model, text, contexts))))


if __name__ == "__main__":
    main()
