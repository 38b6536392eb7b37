"""Reads a request's JSON body into its schema, whatever bytes it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from server.errors import BadRequest, ServingError
from server.schema import Schema
from server.streams import ClientGone

# A prompt of a million tokens is about 5 MB; as JSON it is seldom twice that.
MAX_BODY_BYTES = 32 << 20
# Parsing holds the interpreter for up to 0.1 µs a value, and streams stall as long. No context
# holds as many token ids, nor a text of as many commas.
MAX_VALUES = 2 << 20
# About a millisecond's worth of parsing and checking.
_LARGE_BYTES = 256 << 10


class BodyTooLarge(ServingError):
    status = 413
    type = "invalid_request_error"


S = TypeVar("S", bound=Schema)


async def read_body(request: Request, schema: type[S]) -> S:
    """The body, validated. No content type is asked for: `curl -d` sends a form's.

    Raises BadRequest that names the field, BodyTooLarge, ClientGone.
    """
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise BodyTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")
    except ClientDisconnect as error:
        raise ClientGone("the client closed the connection") from error
    if body.count(b",") > MAX_VALUES:
        raise BodyTooLarge(f"the body has more than {MAX_VALUES} values")
    try:
        if len(body) <= _LARGE_BYTES:
            return schema.model_validate_json(bytes(body))
        return await asyncio.to_thread(schema.model_validate_json, bytes(body))
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=False)) from error


def _refusal(problems: Sequence[ErrorDetails]) -> BadRequest:
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if where and isinstance(first["input"], int | float | str | None):
        message += f", not {_shown(first['input'])}"
    return BadRequest(f"{where}: {message}" if where else message, param=where or None)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
