"""A real daemon for a test: own store, own port, environment and privileges of choice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

START_SECONDS = 30.0


class Daemon:
    """A running `corral serve` and a client for it."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process = process
        self.log = log
        self.client = httpx.Client(base_url=url, timeout=110)

    def pull(self, name: str, path: Path) -> None:
        answer = self.client.post(
            "/api/pull", json={"model": name, "from": str(path), "stream": False}
        )
        assert answer.status_code == 200, answer.text

    def edit(self, model: str, **change: object) -> dict[str, Any]:
        answer = self.client.post("/api/edit", json={"model": model, **change})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def load(self, model: str) -> None:
        """An empty prompt loads."""
        answer = self.client.post("/api/generate", json={"model": model, "keep_alive": -1})
        assert answer.status_code == 200, answer.text

    def unload(self, model: str) -> None:
        answer = self.client.post("/api/generate", json={"model": model, "keep_alive": 0})
        assert answer.status_code == 200, answer.text

    def complete(self, model: str, prompt: str, tokens: int = 16, **more: object) -> str:
        """Greedy text of /v1/completions."""
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            **more,
        }
        answer = self.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def ledger(self, model: str) -> dict[str, Any]:
        answer = self.client.get(f"/api/residency/{model}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name with labels, as in the exposition text."""
        lines = self.client.get("/metrics").text.splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def logged(self, text: str) -> int:
        """How often the daemon has logged it so far."""
        return self.log.read_text().count(text)

    def worker_pid(self, model: str) -> int:
        rows = self.client.get("/api/ps").json()["models"]
        return int(next(row["pid"] for row in rows if row["name"] == model))


def worker_status(pid: int, field: str) -> int:
    """A size of /proc/<pid>/status such as VmLck or VmRSS, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field} in the status of {pid}")


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    """Waits for what follows an answer, such as a pin."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def read_whole(path: Path) -> None:
    """Brings a file into the page cache."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def blob_of(home: Path, model: Path) -> Path:
    """The blob in the store that holds a copy of a model file."""
    size = model.stat().st_size
    return next(blob for blob in (home / "blobs").iterdir() if blob.stat().st_size == size)


def sse(lines: Iterator[str]) -> Iterator[Any]:
    """The JSON events of an OpenAI stream, up to [DONE]."""
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


@contextlib.contextmanager
def running(
    home: Path, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> Iterator[Daemon]:
    """Starts a daemon over the store in home, behind a command such as setpriv if given."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
    log = home / "daemon.log"
    command = [*prefix, sys.executable, "-m", "server.cli", "serve", "--port", str(port)]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdout=sink,
            stderr=sink,
            env={**clean, "CORRAL_HOME": str(home), **(env or {})},
        )
    daemon = Daemon(process, f"http://127.0.0.1:{port}", log)
    try:
        _wait(daemon)
        yield daemon
    finally:
        daemon.client.close()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _wait(daemon: Daemon) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if daemon.process.poll() is not None:
            break
        with contextlib.suppress(httpx.TransportError):
            if daemon.client.get("/health").status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"the daemon did not start:\n{daemon.log.read_text()}")
