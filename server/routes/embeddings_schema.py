"""Bodies of the routes that make embeddings: what is taken, and what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, PlainValidator

from server.routes.ollama_schema import KeepAlive, Named
from server.routes.openai_schema import is_tokens
from server.schema import Schema

# OpenAI's.
MAX_INPUTS = 2048

Dimensions = Annotated[int, Field(ge=1, le=2**31 - 1)] | None


def _inputs(value: Any) -> list[str | list[int]]:
    """One input or many, each text or token ids."""
    inputs = [value] if isinstance(value, str) or is_tokens(value) else value
    if not isinstance(inputs, list) or not all(isinstance(i, str) or is_tokens(i) for i in inputs):
        raise ValueError(
            "must be a string, a list of strings, a list of token ids or a list of those;"
            " none may be empty"
        )
    return _checked(inputs)


def _texts(value: Any) -> list[str | list[int]]:
    """One text or many."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a string or a list of strings")
    return _checked(texts)


def _checked(inputs: list[str | list[int]]) -> list[str | list[int]]:
    if inputs in ([], [""]):
        raise ValueError("must hold text")
    if len(inputs) > MAX_INPUTS:
        raise ValueError(f"has {len(inputs)} inputs, at most {MAX_INPUTS} are allowed")
    for index, each in enumerate(inputs):
        if not each:
            raise ValueError(f"input {index} is empty")
    return inputs


class EmbeddingsRequest(Schema):
    """OpenAI's."""

    model: str
    input: Annotated[list[str | list[int]], PlainValidator(_inputs)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions = None
    user: str | None = None


class EmbedRequest(Named):
    """Ollama's. Of `options` none counts: they sample, or load the model."""

    input: Annotated[list[str | list[int]], PlainValidator(_texts)]
    truncate: bool | None = True
    dimensions: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """0 is all, as Ollama has it."""
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive = None


class OldEmbedRequest(Named):
    """Ollama's first."""

    prompt: Annotated[str, Field(min_length=1)]
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive = None


class Usage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
