"""The worker's end of the socket to the daemon: framed messages in and out."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
from typing import NoReturn

from server.protocol import (
    HEADER_BYTES,
    MAX_EMBEDS,
    ProtocolError,
    ToDaemon,
    ToWorker,
    body_length,
    decode_for_worker,
    encode,
)

logger = logging.getLogger("worker.channel")

EXIT_ORPHANED = 3
"""The daemon is gone: its end of the socket was closed."""
EXIT_PROTOCOL = 4

# The daemon has at most one Generate and one Cancel per slot on the way, and llama.cpp has
# 256 sequences; the same for embedding requests. A full queue stops the reader, and so, in time,
# the sender.
_QUEUE_LENGTH = 2 * (256 + MAX_EMBEDS)


class Channel:
    """Reads on a thread of its own, so that the end of the daemon is seen in the middle of a
    native call too: then the process exits at once, whatever it was doing."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._inbox: queue.Queue[ToWorker] = queue.Queue(_QUEUE_LENGTH)
        threading.Thread(target=self._read, name="channel", daemon=True).start()

    def receive(self, *, wait: bool, seconds: float | None = None) -> ToWorker | None:
        """The next message; None if there is none and we do not wait, or not longer than so many
        seconds."""
        with contextlib.suppress(queue.Empty):
            return self._inbox.get(block=wait, timeout=seconds)
        return None

    def send(self, *messages: ToDaemon) -> None:
        """Blocks while the daemon does not read. Returns when the kernel has all of it."""
        try:
            self._sock.sendall(b"".join(map(encode, messages)))
        except (BrokenPipeError, ConnectionResetError):
            _exit_orphaned()

    def _read(self) -> None:
        try:
            while True:
                body = self._exactly(body_length(self._exactly(HEADER_BYTES)))
                self._inbox.put(decode_for_worker(body))
        except ProtocolError as error:
            logger.error("the daemon sent what is no message: %s", error)
            os._exit(EXIT_PROTOCOL)

    def _exactly(self, n: int) -> bytes:
        data = bytearray(n)
        view = memoryview(data)
        while view:
            try:
                got = self._sock.recv_into(view)
            except ConnectionResetError:
                got = 0
            if got == 0:
                _exit_orphaned()
            view = view[got:]
        return bytes(data)


def _exit_orphaned() -> NoReturn:
    # Not sys.exit: the other threads may be inside a decode that lasts minutes.
    os._exit(EXIT_ORPHANED)
