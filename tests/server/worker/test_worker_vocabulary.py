"""What is searched for in a vocabulary, and what is the same without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own, as llama.cpp needs one.
COMPARE = """
import sys
from pathlib import Path
import llama_cpp.llama_cpp as c
from server.worker import llama
from server.worker.native_log import NativeLog

log = NativeLog()
path, options = Path(sys.argv[1]), llama.ModelOptions(True, False, False, 0)
with llama.open_library(log), llama.open_model([path], options, log) as model:
    handle, tokens = model.vocab.handle, range(model.vocab.n_tokens)
    ends = {token for token in tokens if c.llama_vocab_is_eog(handle, token)}
    assert model.vocab.ends == ends and ends, (model.vocab.ends, ends)
    longest = max(len(c.llama_vocab_get_text(handle, token)) for token in tokens)
    assert model.vocab.longest_token == longest > 8, (model.vocab.longest_token, longest)
    context = llama.ContextOptions(
        n_ctx=512, n_batch=512, n_ubatch=256, n_threads=1, n_seq_max=2,
        type_k="f16", type_v="f16", flash_attn="auto",
    )
    need = llama.need([path], 0, context)
    llama.vocabulary_overrides = lambda _: None
    assert need == llama.need([path], 0, context), need
    assert min(need.weights, need.kv, need.compute) > 1_000_000, need
"""


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_end_tokens_the_longest_and_a_layout_without_any(
    model: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(model)
    command = [sys.executable, "-c", COMPARE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
