"""Sends completions and notes when their bytes arrive, with as little work as possible:
the servers compute on the same cores."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from time import perf_counter
from types import TracebackType
from typing import Self

import httpx

from bench.sse import Chunk, Timeline, timeline
from provision.failure import Failure

_TIMEOUT_SECONDS = 300.0


class Recording:
    """One request: filled while it runs, read once it is over or cut off."""

    def __init__(self) -> None:
        self.sent = 0.0
        self.chunks: list[Chunk] = []

    def timeline(self) -> Timeline:
        return timeline(self.chunks)


class Client(AbstractAsyncContextManager["Client"]):
    """Of one server and the first model it lists."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=_TIMEOUT_SECONDS,
            limits=httpx.Limits(max_connections=None),
            # A server may close an idle connection at the moment when it is used again.
            headers={"Connection": "close"},
        )
        self._model = ""

    async def __aenter__(self) -> Self:
        try:
            answer = await self._http.get("/v1/models")
        except httpx.TransportError as error:
            raise Failure(f"{self._http.base_url} does not answer: {error}") from error
        if answer.status_code != httpx.codes.OK or not answer.json()["data"]:
            raise Failure(f"{answer.url} lists no model: {answer.text[:200]}")
        self._model = answer.json()["data"][0]["id"]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def complete(self, prompt: str, max_tokens: int) -> Recording:
        recording = Recording()
        await self.record(recording, prompt, max_tokens)
        return recording

    async def record(self, recording: Recording, prompt: str, max_tokens: int) -> None:
        """Greedy, always max_tokens long, streamed. Raises Failure for a refusal."""
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            await self._stream(recording, body)
        except httpx.TransportError as error:
            raise Failure(f"a completion broke off: {type(error).__name__} {error}") from error

    async def _stream(self, recording: Recording, body: dict[str, object]) -> None:
        chunks = recording.chunks
        recording.sent = perf_counter()
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                text = (await response.aread()).decode(errors="replace")
                raise Failure(f"a completion was refused ({response.status_code}): {text[:300]}")
            async for data in response.aiter_raw():
                chunks.append((perf_counter(), data))
