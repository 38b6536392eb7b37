"""A client that goes away ends its request, in whatever phase it is."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake_core import ENDED, FakeCore

from server.app import build_app
from server.background import WorkCancelled
from server.calls import Begun, CallEvent, Text, Vectors
from server.routes import ollama_store
from server.services import Services
from server.streams import LiveStream

NEVER = asyncio.Event


class Client:
    """One request, sent as an ASGI server would, whose client can hang up."""

    def __init__(self, app: Any, path: str, body: dict[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self._gone = asyncio.Event()
        self._unread = [{"type": "http.request", "body": json.dumps(body).encode()}]
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [],
            "asgi": {"version": "3.0", "spec_version": "2.3"},
        }
        self.task: asyncio.Task[None] = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._unread:
            return self._unread.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    async def hang_up(self) -> None:
        self._gone.set()
        await asyncio.wait_for(self.task, 5)


async def until(true: Callable[[], Any]) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come true in 5 s")


CHAT: dict[str, Any] = {"model": "chatty", "messages": [{"role": "user", "content": "Hi"}]}
GENERATE: dict[str, Any] = {"model": "base", "prompt": "Hi"}
ROUTES = {"/v1/chat/completions": CHAT, "/api/generate": GENERATE}
BEFORE: dict[str, list[CallEvent]] = {
    "queued": [],
    "prefill": [Begun(5, 0)],
    "streaming": [Begun(5, 0), Text("Hel")],
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", list(ROUTES))
@pytest.mark.parametrize("phase", list(BEFORE))
async def test_hanging_up_cancels(
    services: Services, core: FakeCore, path: str, stream: bool, phase: str
) -> None:
    core.script = [*BEFORE[phase], NEVER()]
    client = Client(build_app(services), path, {**ROUTES[path], "stream": stream})
    await until(lambda: core.calls)
    if stream and phase == "streaming":
        await until(lambda: "Hel" in client.text)
    assert core.closed == []
    await client.hang_up()
    assert core.closed == [core.calls[0].id]
    await services.templates.close()


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed"])
@pytest.mark.parametrize("script", [[], [Vectors((bytes(8),))]], ids=["queued", "running"])
async def test_hanging_up_cancels_embeddings(
    services: Services, core: FakeCore, path: str, script: list[CallEvent]
) -> None:
    core.script = [*script, NEVER()]
    client = Client(build_app(services), path, {"model": "base", "input": ["a", "b"]})
    await until(lambda: core.embeds)
    assert core.closed == []
    await client.hang_up()
    assert core.closed == [core.embeds[0].id]


async def test_hanging_up_cancels_all_of_n(services: Services, core: FakeCore) -> None:
    core.script = [Begun(5, 0), Text("Hel"), NEVER()]
    body = {**CHAT, "n": 3, "stream": True}
    client = Client(build_app(services), "/v1/chat/completions", body)
    await until(lambda: client.text.count("Hel") == 3)
    await client.hang_up()
    assert sorted(core.closed) == sorted(call.id for call in core.calls)
    await services.templates.close()


async def test_hanging_up_ends_a_pull_before_its_first_line(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def pull(_store: Any, _name: Any, _path: Any, progress: Callable[[int, int], None]) -> None:
        begun.set()
        go.wait(5)
        try:
            progress(1, 1)
        except WorkCancelled:
            ended.set()
            raise

    monkeypatch.setattr(ollama_store, "pull_local", pull)
    client = Client(build_app(services), "/api/pull", {"model": "new", "from": "/m.gguf"})
    await until(begun.is_set)
    hanging_up = asyncio.create_task(client.hang_up())
    asyncio.get_running_loop().call_later(0.05, go.set)
    await hanging_up
    assert ended.is_set()


async def test_a_stream_that_never_started_is_closed(core: FakeCore) -> None:
    """The client hangs up while the head of the answer is being sent."""
    closed = []

    class Source:
        async def aclose(self) -> None:
            closed.append(True)

    async def frames() -> Any:
        yield b"never"

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def stuck(_message: Any) -> None:
        await NEVER().wait()

    await asyncio.wait_for(LiveStream(frames(), Source(), "text/plain")({}, gone, stuck), 5)
    assert closed == [True]


async def test_an_idle_stream_is_pinged_and_a_finished_one_is_not(core: FakeCore) -> None:
    sent: list[bytes] = []
    go = asyncio.Event()

    class Source:
        async def aclose(self) -> None: ...

    async def frames() -> Any:
        yield b"a"
        await go.wait()
        yield b"b"

    async def connected() -> dict[str, Any]:
        await NEVER().wait()
        return {}

    async def send(message: Any) -> None:
        sent.append(message.get("body"))
        if sent.count(b": ping\n\n") == 2:
            go.set()
        if message.get("body") == b"":
            await asyncio.sleep(0.08)

    response = LiveStream(frames(), Source(), "x/y", b": ping\n\n", ping_seconds=0.02)
    send_it: Callable[[Any], Awaitable[None]] = send
    await asyncio.wait_for(response({}, connected, send_it), 5)
    assert sent == [None, b"a", b": ping\n\n", b": ping\n\n", b"b", b""]


async def test_the_fake_ends_what_nobody_disturbs(services: Services, core: FakeCore) -> None:
    core.script = [Begun(5, 0), Text("Hello"), ENDED]
    client = Client(build_app(services), "/v1/chat/completions", CHAT)
    await asyncio.wait_for(client.task, 5)
    assert '"Hello"' in client.text
    await services.templates.close()
