"""What is searched for in a vocabulary, against a look at every token of it."""

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
options = llama.ModelOptions(True, False, False, 0)
with llama.open_library(log), llama.open_model([Path(sys.argv[1])], options, log) as model:
    handle, tokens = model.vocab.handle, range(model.vocab.n_tokens)
    ends = {token for token in tokens if c.llama_vocab_is_eog(handle, token)}
    assert model.vocab.ends == ends and ends, (model.vocab.ends, ends)
    longest = max(len(c.llama_vocab_get_text(handle, token)) for token in tokens)
    assert model.vocab.longest_token == longest > 8, (model.vocab.longest_token, longest)
"""


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_the_end_tokens_and_the_longest_one(model: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    command = [sys.executable, "-c", COMPARE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
