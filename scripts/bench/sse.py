"""An OpenAI stream as it arrived, read after it is over: parsing does not disturb the timing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from provision.failure import Failure

Chunk = tuple[float, bytes]
"""When it arrived, in seconds, and what."""


@dataclass(frozen=True)
class Timeline:
    times: tuple[float, ...]
    """When each piece of text arrived."""
    prompt_tokens: int
    """As the server counts them, as the next two; 0 if the stream was cut off before."""
    completion_tokens: int
    cached_tokens: int
    done: bool


def timeline(chunks: Iterable[Chunk]) -> Timeline:
    """Raises Failure if the server reports an error within the stream."""
    times: list[float] = []
    usage: dict[str, Any] = {}
    done = False
    for time, data in _events(chunks):
        if data == b"[DONE]":
            done = True
            continue
        event = json.loads(data)
        if "error" in event:
            raise Failure(f"the server ended a stream with an error: {event['error']}")
        usage = event.get("usage") or usage
        times += [time for choice in event.get("choices", ()) if choice.get("text")]
    details = usage.get("prompt_tokens_details") or {}
    return Timeline(
        times=tuple(times),
        prompt_tokens=usage.get("prompt_tokens", 0),
        completion_tokens=usage.get("completion_tokens", 0),
        cached_tokens=details.get("cached_tokens") or 0,
        done=done,
    )


def _events(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The data of each event, at the time when its line was complete."""
    rest = b""
    for time, data in chunks:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield time, line[5:].strip()
