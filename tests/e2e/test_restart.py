"""What a model's requests touched survives a restart of the daemon, and not the model."""

from __future__ import annotations

from pathlib import Path

from daemon import blob_of, running, until
from page_files import drop_cache

MODEL = "moe:latest"
LAZY = {"CORRAL_WEIGHT_RESIDENCY": "lazy"}


def test_a_restarted_daemon_brings_the_working_set_back(tmp_path: Path, moe: Path) -> None:
    with running(tmp_path, LAZY) as daemon:
        daemon.pull(MODEL, moe)
        blob = blob_of(tmp_path, moe)
        drop_cache(blob)
        text = daemon.complete(MODEL, " hello", tokens=2)
        touched = daemon.ledger(MODEL)["touched_bytes"]
    assert touched < 0.5 * moe.stat().st_size
    assert daemon.logged(f"model={MODEL} has its working set kept") == 1

    drop_cache(blob)
    with running(tmp_path, LAZY) as daemon:
        daemon.load(MODEL)
        assert daemon.logged(f"model={MODEL} replays its working set") == 1
        until(lambda: daemon.ledger(MODEL)["resident_bytes"] >= 0.95 * touched)
        assert daemon.complete(MODEL, " hello", tokens=2) == text
        assert daemon.ledger(MODEL)["resident_bytes"] <= 1.15 * touched


def test_an_unload_keeps_the_set_and_a_delete_takes_it_along(tmp_path: Path, moe: Path) -> None:
    sets = tmp_path / "working-sets"
    with running(tmp_path, LAZY) as daemon:
        daemon.pull(MODEL, moe)
        daemon.complete(MODEL, " hello", tokens=2)
        daemon.unload(MODEL)
        until(lambda: daemon.logged("has its working set kept") == 1)
        (kept,) = sets.iterdir()
        assert kept.name == f"{blob_of(tmp_path, moe).name}.lazy.msgpack"
        daemon.complete(MODEL, " hello", tokens=2)
        answer = daemon.client.request("DELETE", "/api/delete", json={"model": MODEL})
        assert answer.status_code == 200, answer.text
        assert list(sets.iterdir()) == []
        until(lambda: not daemon.client.get("/api/ps").json()["models"])
    assert list(sets.iterdir()) == []
