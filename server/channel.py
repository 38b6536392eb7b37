"""The daemon's end of the socket to one worker: messages in as they come, frames out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from server import protocol
from server.protocol import HEADER_BYTES, ToDaemon


class Channel(asyncio.Protocol):
    """Hands a message on in the turn of the loop that reads it: each token comes this way."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._unread = bytearray()
        self._on_message: Callable[[ToDaemon], None] | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def over(cls, sock: socket.socket) -> Channel:
        """Takes the socket over."""
        _, channel = await asyncio.get_running_loop().create_unix_connection(cls, sock=sock)
        return channel

    async def receive(self, on_message: Callable[[ToDaemon], None]) -> None:
        """Pass on every message until the worker hangs up; to be called once.

        Raises ProtocolError for what is no message, and whatever on_message raises.
        """
        self._on_message = on_message
        try:
            self._pass_on()
            if not self._transport.is_closing():
                self._transport.resume_reading()
            await self._ended
        finally:
            self._on_message = None

    def send(self, frame: bytes) -> None:
        """Without waiting for a worker that is slow to read; nothing if it has hung up."""
        if not self._transport.is_closing():
            self._transport.write(frame)

    def close(self) -> None:
        """At once, with what was not sent."""
        self._transport.abort()

    # -- the loop's calls ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if self._on_message is None:
            # Until somebody listens, the socket holds up a worker that says more.
            self._transport.pause_reading()
            return
        try:
            self._pass_on()
        except Exception as error:  # noqa: BLE001 - receive() raises it; the loop would only log it
            self._on_message = None
            self._end(error)

    def connection_lost(self, _: Exception | None) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    def _pass_on(self) -> None:
        """Every whole message there is. Raises what receive() raises."""
        while self._on_message is not None and len(self._unread) >= HEADER_BYTES:
            end = HEADER_BYTES + protocol.body_length(self._unread)
            if len(self._unread) < end:
                return
            body = self._unread[HEADER_BYTES:end]
            del self._unread[:end]
            self._on_message(protocol.decode_for_daemon(body))
