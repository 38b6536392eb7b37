"""The command serve: everything set up, then the daemon with a small model, in this process."""

from __future__ import annotations

import argparse
import errno
import os
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

from provision import environment, venvs
from provision.failure import Failure
from provision.models import SMOLLM2, fetch
from provision.paths import ROOT, VENV
from provision.run import quiet, say

MODEL = "smollm2"
_READY_SECONDS = 60


def main(argv: list[str]) -> int:
    host, port = address(argv)
    _refuse_if_taken(host, port)
    environment.prepare()
    _import(fetch(SMOLLM2))
    if port:
        _announce_when_ready(base_url(host, port))
    say("starting the daemon; Ctrl-C stops it")
    os.execve(VENV / "bin" / "corral", ["corral", "serve", *argv], venvs.environment(VENV))


def address(argv: list[str]) -> tuple[str, int]:
    """Where the daemon will listen. Its arguments are checked here, before a build of minutes."""
    parser = argparse.ArgumentParser("serve", description=__doc__, allow_abbrev=False)
    parser.add_argument("--host", default=os.environ.get("CORRAL_HOST") or "127.0.0.1")
    parser.add_argument("--port", type=int, default=os.environ.get("CORRAL_PORT") or "8080")
    known = parser.parse_args(argv)
    return known.host, known.port


def base_url(host: str, port: int) -> str:
    """A URL that reaches the address from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _refuse_if_taken(host: str, port: int) -> None:
    """Told now and not after a build of minutes. Raises Failure."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise Failure(f"cannot listen on {host} port {port}: {error.strerror}") from error
            raise Failure(
                f"port {port} on {host} is in use: stop what listens there, "
                f"or choose another: scripts/serve --port {port + 1}"
            ) from error


def _import(model: Path) -> None:
    """Into the store, by the environment's Python: reading a GGUF needs its packages."""
    program = [str(venvs.python(VENV)), str(ROOT / "scripts" / "provision")]
    quiet(
        [*program, "import_model", MODEL, str(model)], f"importing {MODEL}", venvs.environment(VENV)
    )


def _announce_when_ready(url: str) -> None:
    """In a process of its own, and no child of the daemon that takes this one over."""
    daemon = os.getpid()
    if child := os.fork():
        os.waitpid(child, 0)
        return
    if os.fork() == 0 and _ready(url, daemon):
        print(f"\nReady. Ask it something:\n\n{curl_line(url)}\n", flush=True)
    os._exit(0)


def _ready(url: str, daemon: int) -> bool:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline and Path(f"/proc/{daemon}").exists():
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):
                return True
        except (urllib.error.URLError, TimeoutError):  # not yet listening, or 503
            time.sleep(0.1)
    return False


def curl_line(url: str) -> str:
    key = ' -H "Authorization: Bearer $KEY"' if os.environ.get("CORRAL_API_KEYS") else ""
    ask = '{"role": "user", "content": "Write one sentence about the sea."}'
    body = f'{{"model": "{MODEL}", "temperature": 0, "max_tokens": 100, "messages": [{ask}]}}'
    return f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
