"""An edit of how weights are kept reaches the loaded model at once, beside its requests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from daemon import Daemon, blob_of, running, sse, until, worker_status
from page_files import WITHOUT_IPC_LOCK, drops_rights, flagged_bytes, needs_lock

MODEL = "smollm2:latest"
PROMPT = "Once upon a time"
LONG = {
    **{"model": MODEL, "prompt": PROMPT, "max_tokens": 400, "temperature": 0},
    **{"ignore_eos": True, "stream": True},
}


@pytest.fixture
def eager(daemon: Daemon) -> Iterator[None]:
    """Loaded anew, without options but one: more threads would wait for each other on a busy
    machine."""
    unset = {"weight_residency": None, "pin": None, "repin_requests": None}
    daemon.edit(MODEL, loader={**unset, "n_threads": 1}, reload=True)
    daemon.load(MODEL)
    yield
    daemon.edit(MODEL, loader=unset, reload=True)


def applies(daemon: Daemon, **loader: object) -> dict[str, str]:
    return dict(daemon.edit(MODEL, loader=loader)["applies"])


def row(daemon: Daemon) -> dict[str, object]:
    return next(m for m in daemon.client.get("/api/ps").json()["models"] if m["name"] == MODEL)


def holds(pid: int, weights: int, locked: int) -> bool:
    """Whether what is locked holds the weights so often."""
    return worker_status(pid, "VmLck") // weights == locked


@needs_lock
@pytest.mark.usefixtures("eager")
def test_modes_change_beside_a_stream_that_notices_nothing(
    daemon: Daemon, home: Path, smollm2: Path
) -> None:
    expected = daemon.complete(MODEL, PROMPT, tokens=400)
    daemon.unload(MODEL)
    daemon.load(MODEL)
    pid, blob = daemon.worker_pid(MODEL), blob_of(home, smollm2)
    weights = daemon.ledger(MODEL)["weight_bytes"]
    with daemon.client.stream("POST", "/v1/completions", json=LONG) as stream:
        events = sse(stream.iter_lines())
        pieces = [next(events)]
        for mode in ("lazy", "pinned", "lazy", "pinned", "eager"):
            assert applies(daemon, weight_residency=mode) == {"loader.weight_residency": "now"}
            # In whole pages, which are some more than the weights.
            until(partial(holds, pid, weights, int(mode == "pinned")))
            assert flagged_bytes(pid, blob, "lo") == worker_status(pid, "VmLck")
            assert row(daemon)["locked"] == worker_status(pid, "VmLck")
            assert row(daemon)["weight_residency"] == mode
            name = f'corral_weight_residency_info{{mode="{mode}",model="{MODEL}"}}'
            assert daemon.metrics()[name] == 1
        assert daemon.metrics()[f'corral_requests_running{{model="{MODEL}"}}'] == 1
        pieces += events
    said = "".join(p["choices"][0]["text"] for p in pieces if p["choices"])
    assert said == expected
    assert daemon.worker_pid(MODEL) == pid, "no reload"
    assert daemon.complete(MODEL, PROMPT, tokens=2)
    assert daemon.worker_pid(MODEL) == pid


@needs_lock
@pytest.mark.usefixtures("eager")
def test_several_edits_in_a_row_end_in_the_last(daemon: Daemon) -> None:
    pid = daemon.worker_pid(MODEL)
    for mode in ("pinned", "lazy", "pinned", "eager", "pinned"):
        applies(daemon, weight_residency=mode)
    until(lambda: worker_status(pid, "VmLck") >= daemon.ledger(MODEL)["weight_bytes"])
    for mode in ("lazy", "pinned", "lazy"):
        applies(daemon, weight_residency=mode)
    until(lambda: worker_status(pid, "VmLck") == 0)
    assert row(daemon)["weight_residency"] == "lazy"


@needs_lock
@pytest.mark.usefixtures("eager")
def test_classes_are_pinned_from_the_command_line(daemon: Daemon) -> None:
    url = daemon.client.base_url
    done = subprocess.run(
        [sys.executable, "-m", "server.cli", "edit", "smollm2", "pin=attn,norm"],
        env={**os.environ, "CORRAL_HOST": url.host, "CORRAL_PORT": str(url.port)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"loader\.pin +now", done.stdout)
    pid, weights = daemon.worker_pid(MODEL), daemon.ledger(MODEL)["weight_bytes"]
    until(lambda: worker_status(pid, "VmLck") > 0.15 * weights)
    assert worker_status(pid, "VmLck") == row(daemon)["to_lock"] < 0.3 * weights
    applies(daemon, pin=None)
    until(lambda: worker_status(pid, "VmLck") == 0)


@needs_lock
def test_a_modelfile_pins_and_shadows_an_edit(daemon: Daemon) -> None:
    text = "FROM smollm2\nPARAMETER weight_residency lazy\nPARAMETER pin attn\nPARAMETER pin norm\n"
    body = {"model": "attentive", "modelfile": text, "stream": False}
    assert daemon.client.post("/api/create", json=body).status_code == 200
    shown = daemon.client.post("/api/show", json={"model": "attentive"}).json()["effective"]
    assert shown["pin"] == {"value": ["attn", "norm"], "source": "modelfile"}
    daemon.load("attentive:latest")
    pid, ledger = daemon.worker_pid("attentive:latest"), daemon.ledger("attentive:latest")
    locked = worker_status(pid, "VmLck")
    assert 0.15 * ledger["weight_bytes"] < locked == ledger["locked_bytes"]
    edited = daemon.edit("attentive", loader={"pin": ["ffn"], "repin_requests": 2})
    assert edited["applies"] == {"loader.pin": "shadowed", "loader.repin_requests": "now"}
    assert worker_status(pid, "VmLck") == locked
    daemon.unload("attentive:latest")


@drops_rights
def test_a_refused_change_is_told_in_ps_and_taken_back(tmp_path: Path, smollm2: Path) -> None:
    limited = ["sh", "-c", 'ulimit -l 64; exec "$@"', "sh", *WITHOUT_IPC_LOCK]
    with running(tmp_path, {"CORRAL_WEIGHT_RESIDENCY": "lazy"}, limited) as daemon:
        daemon.pull("smollm2", smollm2)
        before = daemon.complete(MODEL, PROMPT)
        assert applies(daemon, weight_residency="pinned") == {"loader.weight_residency": "now"}
        until(lambda: row(daemon)["pin_error"] != "")
        refused = row(daemon)
        assert refused["weight_residency"] == "pinned"
        assert "RLIMIT_MEMLOCK is 65536 bytes" in str(refused["pin_error"])
        locked, wanted = refused["locked"], refused["to_lock"]
        assert isinstance(locked, int) and isinstance(wanted, int)
        assert locked <= 65536 < daemon.ledger(MODEL)["weight_bytes"] <= wanted
        assert [v for n, v in daemon.metrics().items() if "pin_failures_total" in n] == [1]
        assert daemon.complete(MODEL, PROMPT) == before
        applies(daemon, weight_residency="lazy")
        until(lambda: row(daemon)["pin_error"] == "")
        assert row(daemon)["to_lock"] == row(daemon)["locked"] == 0
