"""Runs calls on the core for a route: opens them before a stream, collects them for a body."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from server.calls import Begun, Call, CallEvent, Core, Ended, Text
from server.protocol import TokenLogprobs
from server.streams import merged

Events = AsyncGenerator[tuple[int, CallEvent]]


@dataclass(frozen=True)
class Answer:
    """One whole generation."""

    text: str
    begun: Begun
    ended: Ended
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of its tokens, where they were asked for."""


@dataclass(frozen=True)
class Opened:
    """Calls of which the first has begun. Its events must be closed, which cancels what still
    runs."""

    begun: Begun
    events: Events
    """What comes after it, with its call's index; to be iterated once."""


async def opened(core: Core, calls: Sequence[Call]) -> Opened:
    """Waits for the model and the queue until the first call has begun.

    Raises ServingError while a proper status can still be sent.
    """
    events = merged([core.generate(call) for call in calls])
    # If this raises, the generator has ended, and closed what it had open.
    _, begun = await anext(events)
    assert isinstance(begun, Begun)
    return Opened(begun, events)


async def answered(core: Core, calls: Sequence[Call]) -> list[Answer]:
    """The answers of all calls in their order."""
    parts: list[list[str]] = [[] for _ in calls]
    logprobs: list[list[TokenLogprobs]] = [[] for _ in calls]
    begun: dict[int, Begun] = {}
    ended: dict[int, Ended] = {}
    async with contextlib.aclosing(merged([core.generate(call) for call in calls])) as events:
        async for index, event in events:
            match event:
                case Text():
                    parts[index].append(event.text)
                    logprobs[index] += event.logprobs
                case Begun():
                    begun[index] = event
                case Ended():
                    ended[index] = event
    return [
        Answer("".join(parts[i]), begun[i], ended[i], tuple(logprobs[i])) for i in range(len(calls))
    ]
