"""What each residency mode does to a real model, seen from outside the worker."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from daemon import Daemon, blob_of, read_whole, running, until, worker_status
from memory_groups import memory_group, needs_memory_cgroup
from page_files import WITHOUT_IPC_LOCK, drop_cache, drops_rights, needs_lock

PROMPT = "The capital of France is"
PINNING = ("pinned", "lazy_then_pin_resident")
MODES = ("eager", "lazy", *PINNING, "resident")
MIB = 1 << 20


@dataclass(frozen=True)
class Seen:
    """Bytes at one moment: from /proc and vmtouch, if it is there, and the daemon's gauges."""

    rss: int
    locked: int
    in_cache: int | None
    resident_gauge: float
    locked_gauge: float
    touched: int


def vmtouch_bytes(path: Path) -> int | None:
    """Bytes of a file in the page cache, as Debian's vmtouch counts them."""
    if shutil.which("vmtouch") is None:
        return None
    output = subprocess.run(["vmtouch", str(path)], check=True, capture_output=True, text=True)
    match = re.search(r"Resident Pages: (\d+)/", output.stdout)
    assert match is not None, output.stdout
    return int(match[1]) * 4096


def sampled_since_now(daemon: Daemon, model: str) -> dict[str, float]:
    """The metrics, once they tell of a sample that began after this call: of a large model it is
    taken beside the scrapes."""
    began, found = time.monotonic(), dict[str, float]()

    def sampled() -> bool:
        found.update(daemon.metrics())
        age = found.get(f'corral_residency_sample_age_seconds{{model="{model}"}}')
        return age is not None and age < time.monotonic() - began

    until(sampled)
    return found


def look(daemon: Daemon, model: str, blob: Path) -> Seen:
    pid = daemon.worker_pid(model)
    metrics = sampled_since_now(daemon, model)
    return Seen(
        rss=worker_status(pid, "VmRSS"),
        locked=worker_status(pid, "VmLck"),
        in_cache=vmtouch_bytes(blob),
        resident_gauge=metrics[f'corral_resident_bytes{{model="{model}"}}'],
        locked_gauge=metrics[f'corral_locked_bytes{{model="{model}"}}'],
        touched=daemon.ledger(model)["touched_bytes"],
    )


def pins(daemon: Daemon, model: str) -> int:
    """Pins that have come to their end: one a load at most."""
    return daemon.logged(f"model={model} pinned ")


@pytest.fixture(
    params=["eager", "lazy", "resident", *(pytest.param(m, marks=needs_lock) for m in PINNING)]
)
def cold(request: pytest.FixtureRequest, daemon: Daemon, home: Path, smollm2: Path) -> str:
    """The model unloaded, its file out of the page cache, and a mode set."""
    daemon.unload("smollm2:latest")
    drop_cache(blob_of(home, smollm2))
    daemon.edit("smollm2", loader={"weight_residency": request.param})
    return str(request.param)


def test_each_mode_from_outside(cold: str, daemon: Daemon, home: Path, smollm2: Path) -> None:
    model, blob = "smollm2:latest", blob_of(home, smollm2)
    pinning, pinned = cold in PINNING, pins(daemon, model)
    daemon.load(model)
    # Each mode reads a dense model ahead, while it serves.
    weights = daemon.ledger(model)["weight_bytes"]
    until(lambda: daemon.ledger(model)["resident_bytes"] >= weights)
    at_load = look(daemon, model, blob)
    daemon.complete(model, PROMPT)
    if pinning:
        until(lambda: pins(daemon, model) > pinned)
    after = look(daemon, model, blob)
    time.sleep(1)
    idle = look(daemon, model, blob)
    header = smollm2.stat().st_size - weights + 2 * 4096

    for seen in (at_load, after, idle):
        # The mapping lacks the file's header, which llama.cpp read and unmapped.
        if seen.in_cache is not None and cold != "resident":
            assert seen.resident_gauge <= seen.in_cache <= seen.resident_gauge + header
        assert abs(seen.locked_gauge - seen.locked) <= 4096
    assert after.rss >= after.touched > 0.9 * weights, "a dense model touches nearly all"
    assert abs(idle.rss - after.rss) < 8 * MIB
    if cold == "resident":
        assert not any(seen.in_cache for seen in (at_load, after, idle))
        metrics = daemon.metrics()
        assert metrics[f'corral_weight_bytes{{backing="anonymous",model="{model}"}}'] == weights
        assert metrics[f'corral_huge_bytes{{kind="anonymous",model="{model}"}}'] > 0.9 * weights
    if cold in ("pinned", "resident"):
        assert at_load.touched >= weights
    else:
        assert at_load.touched < 0.05 * weights
        assert at_load.rss < after.rss - 0.8 * weights
    assert (at_load.locked >= weights) == (cold == "pinned")
    assert (after.locked > 0.9 * weights) == pinning
    if cold == "lazy_then_pin_resident":
        assert at_load.locked == 0
    if not pinning:
        assert idle.locked == 0


def test_greedy_tokens_are_the_same_in_every_mode(daemon: Daemon) -> None:
    texts = set()
    for mode in MODES:
        daemon.unload("smollm2:latest")
        daemon.edit("smollm2", loader={"weight_residency": mode})
        texts.add(daemon.complete("smollm2", PROMPT, tokens=48))
    assert len(texts) == 1
    assert "Paris" in texts.pop()


@needs_lock
def test_only_a_completed_request_pins(daemon: Daemon) -> None:
    model = "smollm2:latest"
    daemon.unload(model)
    daemon.edit(model, loader={"weight_residency": "lazy_then_pin_resident"})
    daemon.load(model)
    pid, pinned, cancelled = daemon.worker_pid(model), pins(daemon, model), "status=499"
    before = daemon.logged(cancelled)
    body = {"model": model, "prompt": PROMPT, "stream": True, "max_tokens": 400, "ignore_eos": True}
    with daemon.client.stream("POST", "/v1/completions", json=body) as stream:
        next(stream.iter_lines())
    until(lambda: daemon.logged(cancelled) > before)
    # Each takes a step at least, and a pin under way would lock a slice in each step.
    for _ in range(4):
        daemon.complete(model, PROMPT, tokens=0)
    assert worker_status(pid, "VmLck") == 0, "the client went away: nothing completed"
    daemon.complete(model, PROMPT)
    until(lambda: pins(daemon, model) > pinned)
    assert worker_status(pid, "VmLck") > 0


@needs_lock
def test_the_pin_set_is_what_the_request_touched(daemon: Daemon, home: Path, moe: Path) -> None:
    """The file lies wholly in the page cache, and a short prompt routes to few experts.

    Told by a lazy run of the same: the pin itself brings what it locks into the page table.
    """
    daemon.pull("moe", moe)
    blob = blob_of(home, moe)
    read_whole(blob)
    daemon.edit("moe", loader={"weight_residency": "lazy"})
    daemon.complete("moe", " hello", tokens=2)
    touched = daemon.ledger("moe:latest")["touched_bytes"]
    daemon.unload("moe:latest")
    daemon.edit("moe", loader={"weight_residency": "lazy_then_pin_resident"})
    daemon.load("moe:latest")
    assert daemon.ledger("moe:latest")["locked_bytes"] == 0
    daemon.complete("moe", " hello", tokens=2)
    until(lambda: pins(daemon, "moe:latest") > 0)
    seen = look(daemon, "moe:latest", blob)
    size = moe.stat().st_size
    assert seen.in_cache is None or seen.in_cache >= size
    # 3 tokens x 2 experts of 48 in each layer, attention, and the tied output matrix.
    assert 0.1 * size < seen.locked < 0.45 * size
    assert touched <= seen.locked <= touched + 0.05 * size


@drops_rights
def test_a_refused_mlock_is_a_warning_and_the_model_serves(tmp_path: Path, smollm2: Path) -> None:
    """Without CAP_IPC_LOCK and with a small memlock limit."""
    limited = ["sh", "-c", 'ulimit -l 64; exec "$@"', "sh", *WITHOUT_IPC_LOCK]
    with running(tmp_path, {"CORRAL_WEIGHT_RESIDENCY": "pinned"}, limited) as daemon:
        daemon.pull("smollm2", smollm2)
        assert "Paris" in daemon.complete("smollm2", PROMPT)
        metrics = daemon.metrics()
        assert metrics['corral_locked_bytes{model="smollm2:latest"}'] <= 64 * 1024
        failures = [name for name in metrics if name.startswith("corral_pin_failures_total")]
        assert failures
        log = daemon.log.read_text()
        assert log.count("RLIMIT_MEMLOCK is") == 1, "once, by the daemon"
        assert "IPC_LOCK" in log


@needs_memory_cgroup
def test_a_model_that_does_not_fit_is_refused_with_the_reason(
    tmp_path: Path, smollm2: Path
) -> None:
    """The daemon serves on, and the client is told what a mode would need and which serves."""
    with (
        memory_group("daemon", 200 * MIB) as group,
        running(tmp_path, {"CORRAL_WEIGHT_RESIDENCY": "resident"}, group.prefix) as daemon,
    ):
        daemon.pull("smollm2", smollm2)
        body = {"model": "smollm2", "prompt": PROMPT, "max_tokens": 2, "temperature": 0}
        answer = daemon.client.post("/v1/completions", json=body)
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert error["code"] == "model_load_failed"
        assert "'resident' needs" in error["message"]
        assert str(group.path) in error["message"]
        assert daemon.logged("'resident' needs") == 1
        daemon.edit("smollm2", loader={"weight_residency": "lazy", "n_ctx": 256})
        assert daemon.complete("smollm2", PROMPT, tokens=2)
