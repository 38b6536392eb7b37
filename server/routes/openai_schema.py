"""Bodies of the OpenAI routes: what is taken, and what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from server.errors import BadRequest
from server.sampling import SamplingFields

MAX_CALLS = 64
# Of one prompt.
MAX_TOKEN_IDS = 1 << 20
_INT32_MAX = 2**31 - 1

# Field -> the values that ask for nothing. Anything else would be silently not done.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "top_logprobs": (None, 0),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "json_schema": (None, {}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "echo": (None, False),
}


def _content(value: Any) -> str:
    """A message's text, from a string or from text parts."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of parts")
    return "".join(_part(part) for part in value)


def _part(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        raise ValueError(f"a part of type {str(kind)[:40]!r} is not supported, only 'text'")
    text = part.get("text")
    if not isinstance(text, str):
        raise ValueError("a part of type 'text' needs a string in 'text'")
    return text


def _prompts(value: Any) -> list[str | list[int]]:
    """One prompt or many, each text or token ids."""
    prompts = [value] if isinstance(value, str) or is_tokens(value) else value
    if isinstance(prompts, list) and prompts:
        if len(prompts) > MAX_CALLS:
            raise ValueError(f"{len(prompts)} prompts, at most {MAX_CALLS} are allowed")
        if all(isinstance(p, str) or is_tokens(p) for p in prompts):
            return prompts
    raise ValueError("must be a string, a list of strings, a list of token ids or a list of those")


def is_tokens(value: Any) -> bool:
    """Whether it is a list of token ids. Raises ValueError if they are too many."""
    if not isinstance(value, list) or not value or type(value[0]) is not int:
        return False
    if len(value) > MAX_TOKEN_IDS:
        raise ValueError(f"{len(value)} token ids, at most {MAX_TOKEN_IDS} are allowed")
    # Quicker than a loop, and the event loop may wait for it.
    return set(map(type, value)) == {int} and min(value) >= 0 and max(value) <= _INT32_MAX


class Message(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, PlainValidator(_content)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    include_usage: bool = False


class CompletionFields(SamplingFields):
    """What both generating routes take."""

    model: str
    max_tokens: int | None = Field(default=None, ge=-1, le=_INT32_MAX)
    """-1 is until the context is full."""
    n: int = Field(default=1, ge=1, le=16)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False

    def limit(self) -> int | None:
        return self.max_tokens

    @model_validator(mode="after")
    def refuse_unsupported(self) -> Self:
        """Raises BadRequest naming the first field that asks for what is not there."""
        for name, value in (self.model_extra or {}).items():
            allowed = _REFUSED.get(name)
            if allowed is not None and not any(
                type(value) is type(nothing) and value == nothing for nothing in allowed
            ):
                raise BadRequest(f"{name} is not supported", param=name)
        return self


class ChatRequest(CompletionFields):
    messages: list[Message] = Field(min_length=1, max_length=10_000)
    max_completion_tokens: int | None = Field(default=None, ge=-1, le=_INT32_MAX)
    """The newer name; wins over max_tokens."""
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def n_logprobs(self) -> int | None:
        """Likeliest tokens to tell beside each one drawn; None tells nothing."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def refuse_top_without_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
        return self


class CompletionRequest(CompletionFields):
    prompt: Annotated[list[str | list[int]], PlainValidator(_prompts)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    def n_logprobs(self) -> int | None:
        """Likeliest tokens to tell beside each one drawn; None tells nothing."""
        return self.logprobs
