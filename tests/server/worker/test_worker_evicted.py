"""The page cache is taken away while a request runs: it waits for the disk and says the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from page_files import drop_cache, page_out, root_only
from worker_process import loaded_worker, request

from server.protocol import Finished, Step


@root_only
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_eviction_under_a_request_changes_no_token(
    smollm2: Path, tmp_path: Path, mode: str
) -> None:
    own_copy = Path(shutil.copyfile(smollm2, tmp_path / "model.gguf"))
    drop_cache(own_copy)  # Unwritten pages would not be evicted.
    asked = request("r", "Once upon a time", max_tokens=24, ignore_eos=True)
    with loaded_worker(own_copy, residency=mode) as (worker, _):
        expected = worker.answer(asked).text
    with loaded_worker(own_copy, residency=mode) as (worker, ready):
        worker.accepted(asked)
        text, evictions = "", 0
        while not isinstance(message := worker.receive(), Finished):
            assert isinstance(message, Step)
            text += "".join(piece.text for piece in message.pieces)
            if len(message.pieces) and evictions < 8:
                page_out(worker.process.pid, own_copy)
                evictions += 1
    assert text == expected
    # Each eviction wants the file read again.
    assert (message.timings.read_bytes or 0) > 4 * ready.weights.file
