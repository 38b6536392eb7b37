"""A model's file is cut short or replaced under its worker: that model alone feels it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import Daemon, blob_of, running, sse, worker_status
from made_models import TINY, write_moe

MODEL = "smollm2:latest"
PROMPT = "The capital of France is"


@pytest.fixture
def own_daemon(tmp_path: Path, smollm2: Path) -> Iterator[Daemon]:
    """With a store that a test may damage, and a small neighbour that is loaded."""
    with running(tmp_path, {"CORRAL_WEIGHT_RESIDENCY": "lazy"}) as daemon:
        daemon.pull(MODEL, smollm2)
        daemon.edit(MODEL, loader={"n_threads": 1})
        (tiny,) = write_moe(tmp_path / "tiny.gguf", smollm2, TINY)
        daemon.pull("neighbour", tiny)
        daemon.load("neighbour:latest")
        yield daemon


def test_a_file_cut_short_ends_its_own_worker_and_requests_with_the_reason(
    own_daemon: Daemon, tmp_path: Path, smollm2: Path
) -> None:
    daemon, neighbour = own_daemon, own_daemon.worker_pid("neighbour:latest")
    body = {"model": MODEL, "prompt": PROMPT, "stream": True, "max_tokens": 3000}
    with daemon.client.stream("POST", "/v1/completions", json={**body, "ignore_eos": True}) as got:
        events = sse(got.iter_lines())
        assert "choices" in next(events)
        os.truncate(blob_of(tmp_path, smollm2), 10 << 20)
        last = list(events)[-1]
    assert "SIGBUS" in last["error"]["message"]
    assert "truncated" in last["error"]["message"]
    assert daemon.logged("ended by SIGBUS (a file of the model was truncated") >= 1
    assert daemon.worker_pid("neighbour:latest") == neighbour
    assert daemon.complete("neighbour", PROMPT, tokens=2)
    again = daemon.client.post("/v1/completions", json={"model": MODEL, "prompt": PROMPT})
    assert (again.status_code, again.json()["error"]["code"]) == (500, "model_load_failed")
    assert "corral_models_loaded" in daemon.metrics()
    assert daemon.worker_pid("neighbour:latest") == neighbour


def test_a_replaced_file_is_met_at_the_next_load(
    own_daemon: Daemon, tmp_path: Path, smollm2: Path
) -> None:
    daemon, blob = own_daemon, blob_of(tmp_path, smollm2)
    said = daemon.complete(MODEL, PROMPT)
    before = daemon.ledger(MODEL)
    other = tmp_path / "other"
    other.write_bytes(b"no model")
    other.replace(blob)
    # The worker and the ledger hold the file that was there when it was loaded.
    assert daemon.complete(MODEL, PROMPT) == said
    after = daemon.ledger(MODEL)
    unmoved = ("file_bytes", "weight_bytes", "mapped_bytes", "resident_bytes", "probe")
    assert {key: after[key] for key in unmoved} == {key: before[key] for key in unmoved}
    assert after["touched_bytes"] > 0.9 * after["weight_bytes"]
    assert worker_status(daemon.worker_pid(MODEL), "VmRSS") > after["touched_bytes"]
    daemon.unload(MODEL)
    again = daemon.client.post("/v1/completions", json={"model": MODEL, "prompt": PROMPT})
    assert (again.status_code, again.json()["error"]["code"]) == (500, "model_load_failed")
    assert daemon.complete("neighbour", PROMPT, tokens=2)
