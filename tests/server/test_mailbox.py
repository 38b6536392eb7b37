"""The way of one call's events to a client that may be slow."""

from __future__ import annotations

import asyncio

import pytest

from server.calls import Begun, CallEvent, Ended, Text
from server.errors import WorkerDied
from server.mailbox import Mailbox
from server.protocol import Likelihood, Timings, TokenLogprobs

BEGUN = Begun(3, 0)
ENDED = Ended("stop", 3, 2, Timings(0, 0, 0, 0), 1)


async def everything(mailbox: Mailbox) -> list[CallEvent]:
    events = [await mailbox.get()]
    while not isinstance(events[-1], Ended):
        events.append(await mailbox.get())
    return events


async def test_a_client_that_keeps_up_gets_every_piece() -> None:
    mailbox = Mailbox()
    client = asyncio.create_task(everything(mailbox))
    mailbox.begin(BEGUN)
    for word in ("a", "b"):
        await asyncio.sleep(0)
        mailbox.add(word)
    await asyncio.sleep(0)
    mailbox.end(ENDED)
    assert await client == [BEGUN, Text("a"), Text("b"), ENDED]


async def test_a_client_that_does_not_read_finds_one_piece_however_many_came() -> None:
    mailbox = Mailbox()
    mailbox.begin(BEGUN)
    for _ in range(1000):
        mailbox.add("x")
    mailbox.end(ENDED)
    assert await everything(mailbox) == [BEGUN, Text("x" * 1000), ENDED]


async def test_tokens_without_text_are_no_event() -> None:
    mailbox = Mailbox()
    mailbox.add("")
    client = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.add("ab")
    assert await client == Text("ab")


async def test_an_error_comes_after_the_text_before_it_and_stays_the_end() -> None:
    mailbox = Mailbox()
    mailbox.add("a")
    mailbox.end(WorkerDied("gone"))
    mailbox.end(ENDED)
    assert await mailbox.get() == Text("a")
    with pytest.raises(WorkerDied, match="gone"):
        await mailbox.get()


async def test_likelihoods_come_with_the_text_that_they_are_of_or_alone() -> None:
    one, two = (TokenLogprobs(Likelihood(token, -1), []) for token in (b"a", b"\xc3"))
    mailbox = Mailbox()
    mailbox.add("a", [one])
    mailbox.add("b")
    assert await mailbox.get() == Text("ab", (one,))
    mailbox.add("", [two])
    assert await mailbox.get() == Text("", (two,))
