"""Answers of the generating Ollama routes. Durations are nanoseconds, times ISO 8601."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from server.calls import Begun, Ended


class Stats(msgspec.Struct, omit_defaults=True):
    """What the last body of an answer adds."""

    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    major_faults: int | None = None
    read_bytes: int | None = None


class Message(msgspec.Struct):
    role: str
    content: str


class GenerateBody(Stats, kw_only=True, omit_defaults=True):
    model: str
    created_at: str
    response: str
    done: bool


class ChatBody(Stats, kw_only=True, omit_defaults=True):
    model: str
    created_at: str
    message: Message
    done: bool


def generate_body(model: str, text: str, last: Stats | None) -> GenerateBody:
    """One line of /api/generate; the last one carries the figures."""
    figures = msgspec.structs.asdict(last) if last else {}
    done = last is not None
    return GenerateBody(model=model, created_at=now(), response=text, done=done, **figures)


def chat_body(model: str, text: str, last: Stats | None) -> ChatBody:
    """One line of /api/chat."""
    figures = msgspec.structs.asdict(last) if last else {}
    message = Message("assistant", text)
    return ChatBody(
        model=model, created_at=now(), message=message, done=last is not None, **figures
    )


def now() -> str:
    return iso(datetime.now(UTC))


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def stats(begun: Begun, ended: Ended) -> Stats:
    return Stats(
        ended.reason,
        _ns(ended.total_seconds),
        _ns(begun.load_seconds),
        ended.prompt_tokens,
        _ns(ended.timings.prompt_seconds),
        ended.completion_tokens,
        _ns(ended.timings.predicted_seconds),
        ended.timings.major_faults,
        ended.timings.read_bytes,
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
