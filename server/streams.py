"""Responses that live as long as their client: cancelled when it goes, pinged while idle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from server.errors import ServingError

# Proxies commonly close a connection that is silent for 30 to 60 seconds.
PING_SECONDS = 15.0

T = TypeVar("T")


class ClientGone(ServingError):
    """The client closed the connection; nobody reads this answer."""

    status = 499
    code = "client_closed_request"


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _finish(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of work, which is cancelled (and waited for) when the client goes.

    The request's body must have been read. Raises ClientGone.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnect(request.receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone("the client closed the connection")
        return working.result()
    finally:
        await _finish(working, watching)


class Closable(Protocol):
    async def aclose(self) -> None: ...


class LiveStream(Response):
    """Sends frames as they come; closes them and their source when they end or the client goes."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        source: Closable,
        media_type: str,
        ping: bytes | None = None,
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        self.frames = frames
        self.source = source
        self.ping = ping
        self.ping_seconds = ping_seconds
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._sent_at = asyncio.get_running_loop().time()
        sending = asyncio.create_task(self._send_frames(send))
        watching = asyncio.create_task(_disconnect(receive))
        pinging = asyncio.create_task(self._send_pings(send))
        try:
            await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            await _finish(sending, watching, pinging)
            await self.frames.aclose()
            # A generator that never started runs none of its own clean-up.
            await self.source.aclose()

    async def _send_frames(self, send: Send) -> None:
        headers: Message = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(headers)
        loop = asyncio.get_running_loop()
        async for frame in self.frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            self._sent_at = loop.time()
        # Nothing may follow the last message, not even a ping that waits on the socket.
        self.ping = None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_pings(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        while self.ping is not None:
            await asyncio.sleep(self._sent_at + self.ping_seconds - loop.time())
            if self.ping is not None and loop.time() - self._sent_at >= self.ping_seconds:
                await send({"type": "http.response.body", "body": self.ping, "more_body": True})
                self._sent_at = loop.time()


async def merged(streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """The items of several streams as they come, each with its stream's index.

    Closing it closes them all; the first that raises ends them all.
    """
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as only:
            async for single in only:
                yield 0, single
        return
    # Unbounded, yet holds no more than what the calls may generate.
    queue: asyncio.Queue[tuple[int, T] | asyncio.Task[None]] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(i, stream, queue)) for i, stream in enumerate(streams)]
    for pump in pumps:
        pump.add_done_callback(queue.put_nowait)
    try:
        running = len(pumps)
        while running:
            item = await queue.get()
            if isinstance(item, asyncio.Task):
                item.result()
                running -= 1
            else:
                yield item
    finally:
        await _finish(*pumps)


async def _pump(
    index: int, stream: AsyncGenerator[T], queue: asyncio.Queue[tuple[int, T] | asyncio.Task[None]]
) -> None:
    async with contextlib.aclosing(stream):
        async for item in stream:
            queue.put_nowait((index, item))
