"""Killed workers, slow neighbours, racing editors and bad input, through a real daemon."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from daemon import Daemon, blob_of, sse
from page_files import drop_cache

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def gemma(daemon: Daemon, gemma3: Path) -> str:
    daemon.pull("gemma3", gemma3)
    return "gemma3:latest"


def test_a_killed_worker_ends_its_stream_with_an_error_and_nothing_else(
    daemon: Daemon, gemma: str
) -> None:
    daemon.load(gemma)
    neighbour = daemon.worker_pid(gemma)
    body = {"model": "smollm2", "prompt": PROMPT, "stream": True, "max_tokens": 1500}
    body["ignore_eos"] = True
    with daemon.client.stream("POST", "/v1/completions", json=body) as stream:
        assert stream.status_code == 200
        events = sse(stream.iter_lines())
        assert "choices" in next(events)
        os.kill(daemon.worker_pid("smollm2:latest"), signal.SIGKILL)
        last = list(events)[-1]
    assert "killed" in last["error"]["message"].lower()
    assert daemon.worker_pid(gemma) == neighbour
    assert daemon.complete(gemma, PROMPT)
    assert daemon.complete("smollm2", PROMPT), "the next request loads it again"


def test_no_worker_holds_the_daemons_address(daemon: Daemon) -> None:
    """One that outlives a killed daemon for a while would keep the next from starting."""
    daemon.load("smollm2:latest")
    port = f":{daemon.client.base_url.port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(port) and row[3] == "0A"}
    assert listening & files_of(daemon.process.pid)
    assert not listening & files_of(daemon.worker_pid("smollm2:latest"))


def files_of(pid: int) -> set[str]:
    return {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}


def test_unload_ends_the_process(daemon: Daemon) -> None:
    daemon.load("smollm2:latest")
    pid = daemon.worker_pid("smollm2:latest")
    daemon.unload("smollm2:latest")
    assert not Path(f"/proc/{pid}").exists()
    assert not [name for name in daemon.metrics() if 'model="smollm2:latest"' in name]


def scrape_seconds(daemon: Daemon, until: threading.Event) -> list[float]:
    """Durations of scrapes until the event, one every 20 ms."""
    seconds = []
    with httpx.Client(base_url=daemon.client.base_url) as client:
        while not until.is_set():
            start = time.monotonic()
            assert client.get("/metrics").status_code == 200
            seconds.append(time.monotonic() - start)
            time.sleep(0.02)
    return seconds


def test_metrics_answer_during_a_long_prefill_and_a_load(
    daemon: Daemon, home: Path, gemma: str, gemma3: Path
) -> None:
    daemon.edit("smollm2", loader={"n_ctx": 8192})
    daemon.unload("smollm2:latest")
    daemon.unload(gemma)
    drop_cache(blob_of(home, gemma3))
    daemon.load("smollm2:latest")
    prompt = " ".join(str(number) for number in range(900))
    done = threading.Event()
    with ThreadPoolExecutor() as pool:
        scrapes = pool.submit(scrape_seconds, daemon, done)
        prefill = pool.submit(daemon.complete, "smollm2", prompt, 1)
        load = pool.submit(daemon.load, gemma)
        prefill.result()
        load.result()
        done.set()
    daemon.edit("smollm2", loader={"n_ctx": None})
    seconds = sorted(scrapes.result())
    assert len(seconds) >= 40
    assert seconds[len(seconds) * 95 // 100] < 0.1, seconds


def test_no_answered_edit_is_lost_between_two_editors(daemon: Daemon) -> None:
    daemon.client.post("/api/copy", json={"source": "smollm2", "destination": "raced"})

    def editor(key: str) -> None:
        for value in range(1, 21):
            daemon.edit("raced", parameters={key: value})

    with ThreadPoolExecutor() as pool:
        list(pool.map(editor, ("top_k", "repeat_last_n", "num_predict")))
    manifest = daemon.edit("raced", parameters={"seed": 1})["manifest"]
    assert manifest["parameters"] == {
        "top_k": 20,
        "repeat_last_n": 20,
        "num_predict": 20,
        "seed": 1,
    }


@pytest.mark.parametrize("name", ["../x", "a/../b", "x:a/b", "/etc/passwd", "..", "x:.."])
def test_a_name_that_leaves_the_tree_is_refused(daemon: Daemon, smollm2: Path, name: str) -> None:
    answer = daemon.client.post(
        "/api/pull", json={"model": name, "from": str(smollm2), "stream": False}
    )
    assert answer.status_code == 400


def test_what_is_no_gguf_is_refused_and_not_stored(
    daemon: Daemon, home: Path, smollm2: Path, tmp_path: Path
) -> None:
    blobs = sorted((home / "blobs").iterdir())
    garbage, cut = tmp_path / "garbage.gguf", tmp_path / "cut.gguf"
    garbage.write_bytes(os.urandom(100_000))
    cut.write_bytes(smollm2.read_bytes()[:50_000_000])
    for path in (garbage, cut):
        answer = daemon.client.post(
            "/api/pull", json={"model": "bad", "from": str(path), "stream": False}
        )
        assert answer.status_code == 400, answer.text
        assert str(path.name) in answer.json()["error"]
    assert sorted((home / "blobs").iterdir()) == blobs
    assert daemon.client.post("/api/show", json={"model": "bad"}).status_code == 404


def test_a_prompt_longer_than_the_context_gets_both_numbers(daemon: Daemon) -> None:
    daemon.edit("smollm2", loader={"n_ctx": 256})
    daemon.unload("smollm2:latest")
    answer = daemon.client.post(
        "/v1/completions", json={"model": "smollm2", "prompt": "word " * 400, "max_tokens": 1}
    )
    daemon.edit("smollm2", loader={"n_ctx": None})
    daemon.unload("smollm2:latest")
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    # The last space is a token of its own.
    assert "401 tokens and the context 256" in message


def test_an_unknown_edit_key_names_the_nearest_and_changes_nothing(daemon: Daemon) -> None:
    before = daemon.client.post("/api/show", json={"model": "smollm2"}).json()
    answer = daemon.client.post(
        "/api/edit", json={"model": "smollm2", "loader": {"weight_residancy": "lazy"}}
    )
    assert answer.status_code == 400
    assert "weight_residency" in answer.json()["error"]
    assert daemon.client.post("/api/show", json={"model": "smollm2"}).json() == before
    missing = daemon.client.post("/api/edit", json={"model": "nobody", "loader": {}})
    assert missing.status_code == 404
