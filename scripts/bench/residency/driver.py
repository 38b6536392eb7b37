"""Drives a daemon over HTTP: load, ask, and look at the ledger of its one model."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import httpx

from bench.contenders import MODEL_NAME

# A mode that faults in page by page from a slow disk takes minutes over a large model.
_TIMEOUT_SECONDS = 1800.0
_ERROR_LETTERS = 300


class Refused(Exception):
    """The daemon did not do what it was asked, with its reason."""


@dataclass(frozen=True)
class Answer:
    """Times in milliseconds; wall_ms is the client's, the others are the worker's."""

    wall_ms: float
    prefill_ms: float
    generation_ms: float
    tokens_per_second: float
    prompt_tokens: int
    """Computed, not reused."""


class Driver(AbstractContextManager["Driver"]):
    """Every call raises Refused."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def load(self) -> float:
        """Milliseconds. An empty prompt loads."""
        started = perf_counter()
        self._ask("POST", "/api/generate", {"model": MODEL_NAME, "keep_alive": -1, "stream": False})
        return 1000 * (perf_counter() - started)

    def complete(self, prompt: str, max_tokens: int) -> Answer:
        """Greedy, always max_tokens long."""
        body = {
            "model": MODEL_NAME,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        started = perf_counter()
        answer = self._ask("POST", "/v1/completions", body)
        wall_ms = 1000 * (perf_counter() - started)
        timings, n_made = answer["timings"], answer["usage"]["completion_tokens"]
        if n_made != max_tokens:
            raise Refused(f"a request gave {n_made} of {max_tokens} tokens")
        return Answer(
            wall_ms=wall_ms,
            prefill_ms=timings["prompt_ms"],
            generation_ms=timings["predicted_ms"],
            tokens_per_second=timings["predicted_per_second"],
            prompt_tokens=timings["prompt_n"],
        )

    def worker_pid(self) -> int:
        rows = self._ask("GET", "/api/ps")["models"]
        if len(rows) != 1:
            raise Refused(f"{len(rows)} models are loaded where one was wanted")
        return int(rows[0]["pid"])

    def ledger(self) -> dict[str, Any]:
        """As GET /api/residency/{model} tells it."""
        return self._ask("GET", f"/api/residency/{MODEL_NAME}")

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise Refused(f"{path} broke off: {type(error).__name__} {error}") from error
        if answer.status_code != httpx.codes.OK:
            raise Refused(f"{path}: {answer.status_code} {_reason(answer)}")
        return dict(answer.json())


def _reason(answer: httpx.Response) -> str:
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = answer.text
    text = error["message"] if isinstance(error, dict) and "message" in error else str(error)
    return str(text)[:_ERROR_LETTERS]
