"""Cold starts: the first token of a model whose file is not in the page cache.

Of corral from the request for a model that is not loaded, its daemon running as it always does; of
llama-server from the start of its process, as that is what loads a model there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx

from bench import pages
from bench.contenders import MODEL_NAME, Corral, LlamaServer, Setup
from bench.process import free_port, served
from bench.prompts import Prompts
from bench.residency.cgroups import Limits, caged, disk_of
from bench.rounds import order
from provision.failure import Failure
from provision.run import say

MODES = ("eager", "lazy")
MARK = 0.8
_PROMPT_WORDS = 40
_ANSWER_TOKENS = 8
_TIMEOUT_SECONDS = 300.0
_POLL_SECONDS = 0.002
# In which a daemon has a worker waiting that has imported its library.
_REST_SECONDS = 4.0


@dataclass(frozen=True)
class Start:
    """Seconds until the first token of each start, by round."""

    name: str
    seconds: tuple[float, ...]


def measure(
    setup: Setup, program: Path, rounds: int, read_mbps: int | None, seed: int
) -> list[Start]:
    """llama-server first. Another one begins each round; one more, before them, is not counted:
    it brings the programs into memory. Raises Failure."""
    server = LlamaServer(setup, program)
    disk = disk_of(setup.model) if read_mbps else ""
    limits = Limits(read_bps=read_mbps * 10**6 if read_mbps else None, disk=disk)
    found: dict[str, list[float]] = {}
    with caged(limits) as cage:
        prefix = cage.prefix()
        starts: list[tuple[str, Callable[[str], float]]] = [
            ("llama-server", lambda prompt: _llama_server(server, prefix, prompt)),
            *((f"corral {mode}", _corral(Corral(setup, mode, prefix=prefix))) for mode in MODES),
        ]
        for round_ in range(-1, rounds):
            prompts = Prompts(seed, round_)
            for name, start in order(starts, max(round_, 0)):
                say(f"cold start {round_ + 1} of {rounds}: {name}")
                seconds = start(prompts.text(_PROMPT_WORDS))
                if round_ >= 0:
                    found.setdefault(name, []).append(seconds)
    return [Start(name, tuple(found[name])) for name, _ in starts]


def report(starts: Sequence[Start]) -> str:
    """Medians, and the ratios to the first within each round: their median and range."""
    first, *_ = starts
    lines = ["| server | first token after, s | ratio (range) | mark |", "|---|---|---|---|"]
    for start in starts:
        ratios = sorted(a / b for a, b in zip(start.seconds, first.seconds, strict=True))
        middle = median(ratios)
        verdict = f"≤ {MARK:.2f} {'met' if middle <= MARK else 'missed'}"
        compared = f"{middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {verdict}"
        tail = compared if start is not first else "|"
        lines.append(f"| {start.name} | {median(start.seconds):.2f} | {tail} |")
    return "\n".join(lines)


def _corral(corral: Corral) -> Callable[[str], float]:
    def start(prompt: str) -> float:
        with corral.serving() as url:
            time.sleep(_REST_SECONDS)
            pages.drop(corral.setup.model)
            began = time.perf_counter()
            return _first_token(url, prompt) - began

    return start


def _llama_server(server: LlamaServer, prefix: Sequence[str], prompt: str) -> float:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = server.setup.home / "llama-server.log"
    pages.drop(server.setup.model)
    began = time.perf_counter()
    command = [*prefix, *server.command(port)]
    with served(command, url, log, os.environ, _POLL_SECONDS):
        return _first_token(url, prompt) - began


def _first_token(url: str, prompt: str) -> float:
    """The clock's time when its bytes arrive. Raises Failure."""
    body = {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": _ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    came = 0.0
    try:
        with httpx.stream(
            "POST", f"{url}/v1/completions", json=body, timeout=_TIMEOUT_SECONDS
        ) as answer:
            if answer.status_code != httpx.codes.OK:
                raise Failure(f"{url} refused: {answer.read().decode(errors='replace')[:300]}")
            for _ in answer.iter_raw():
                came = came or time.perf_counter()
    except httpx.TransportError as error:
        raise Failure(f"a completion broke off: {type(error).__name__} {error}") from error
    if not came:
        raise Failure(f"{url} answered without a token")
    return came
