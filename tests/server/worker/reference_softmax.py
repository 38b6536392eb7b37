"""Decodes greedily without the engine and prints how likely each token was, as JSON.

`python reference_softmax.py MODEL PROMPT N`, a process of its own as llama.cpp needs one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from server.worker import llama
from server.worker.native_log import NativeLog

OPTIONS = llama.ContextOptions(
    n_ctx=256,
    n_batch=512,
    n_ubatch=32,
    n_threads=1,
    n_seq_max=1,
    type_k="f16",
    type_v="f16",
    flash_attn="auto",
)


def decode(model: llama.Model, context: llama.Context, prompt: str) -> Iterator[tuple[str, float]]:
    """Texts of the likeliest tokens, and the logarithms of their shares."""
    run, position = model.vocab.tokenize(prompt), 0
    batch = llama.Batch(512)
    while True:
        batch.clear()
        row = batch.add(run, position, 0, output=True)
        assert context.decode(batch) == 0
        position += len(run)
        powers = np.exp(context.logits(row, model.vocab.n_tokens).astype(np.longdouble))
        run = np.array([powers.argmax()], dtype=np.int32)
        text = model.vocab.piece(int(run[0])).decode()
        yield text, float(np.log(powers.max() / powers.sum()))


def main() -> None:
    _, file, prompt, n = sys.argv
    log = NativeLog()
    with (
        llama.open_library(log),
        llama.open_model([Path(file)], llama.ModelOptions(True, False, False, 0), log) as model,
        llama.open_context(model, OPTIONS, log) as context,
    ):
        tokens = decode(model, context, prompt)
        print(json.dumps([next(tokens) for _ in range(int(n))]))


if __name__ == "__main__":
    main()
