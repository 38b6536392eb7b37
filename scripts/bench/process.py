"""A server as a process of ours, for as long as it is measured."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from provision.failure import Failure

_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_TAIL_LINES = 15


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(
    command: Sequence[str],
    url: str,
    log: Path,
    env: Mapping[str, str],
    poll_seconds: float = 0.05,
) -> Iterator[str]:
    """The URL, once GET /health answers 200. Raises Failure with the log's end if it does not,
    or if what is done with it fails."""
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=env)
    try:
        _wait_until_healthy(process, url, poll_seconds)
        yield url
    except Failure as error:
        raise Failure(f"{error}\nThe end of the server's log:\n{_tail(log)}") from error
    finally:
        _stop(process)


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, poll_seconds: float) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:  # does not listen yet
            pass
        time.sleep(poll_seconds)
    raise Failure(f"the server at {url} did not start (exit status {process.poll()})")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
