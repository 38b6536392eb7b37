"""The daemon's end of a worker's socket, with a test at the other end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator

import pytest
import uvloop

from server.channel import Channel
from server.protocol import Accepted, ProtocolError, ToDaemon, encode

SAID = [Accepted(str(number), number) for number in range(3)]
FRAMES = b"".join(map(encode, SAID))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("at_a_time", [1, 5, len(FRAMES)])
async def test_messages_are_found_however_the_bytes_come(
    ends: tuple[socket.socket, socket.socket], at_a_time: int
) -> None:
    ours, theirs = ends
    channel = await Channel.over(ours)
    heard: list[ToDaemon] = []
    receiving = asyncio.create_task(channel.receive(heard.append))
    for start in range(0, len(FRAMES), at_a_time):
        theirs.send(FRAMES[start : start + at_a_time])
        await asyncio.sleep(0.001)
    theirs.close()
    await receiving
    assert heard == SAID


async def test_what_came_before_anybody_asked_is_kept(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    channel = await Channel.over(ours)
    theirs.sendall(FRAMES + FRAMES[:5])
    theirs.close()
    await asyncio.sleep(0.01)
    heard: list[ToDaemon] = []
    await channel.receive(heard.append)
    assert heard == SAID


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_worker_that_nobody_listens_to_is_held_up_and_heard_later(
    ends: tuple[socket.socket, socket.socket], run: Callable[[Coroutine[None, None, None]], None]
) -> None:
    ours, theirs = ends
    theirs.setblocking(False)
    frame = encode(Accepted("r", 1))

    async def early() -> None:
        channel = await Channel.over(ours)
        sent = 0
        with pytest.raises(BlockingIOError):
            while sent < 100 << 20:
                sent += theirs.send(frame * 1000)
                await asyncio.sleep(0)
        theirs.close()
        heard: list[ToDaemon] = []
        await channel.receive(heard.append)
        assert len(heard) == sent // len(frame)

    run(early())


@pytest.mark.parametrize("fault", [ProtocolError("unknown request"), KeyError("a fault of ours")])
async def test_after_what_the_receiver_raises_nothing_is_passed_on(
    ends: tuple[socket.socket, socket.socket], fault: Exception
) -> None:
    ours, theirs = ends
    channel = await Channel.over(ours)
    heard: list[ToDaemon] = []

    def refuse(message: ToDaemon) -> None:
        heard.append(message)
        raise fault

    theirs.sendall(FRAMES)
    with pytest.raises(type(fault)):
        await channel.receive(refuse)
    theirs.sendall(FRAMES)
    await asyncio.sleep(0.01)
    assert heard == SAID[:1]
    channel.close()
