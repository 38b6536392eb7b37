"""How one event looks on the wire: server-sent events and newline-delimited JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
SSE_DONE = b"data: [DONE]\n\n"
# A comment: clients skip it, proxies see that the stream lives.
SSE_PING = b": ping\n\n"

_encoder = msgspec.json.Encoder()


def sse(value: Any) -> bytes:
    return b"data: " + _encoder.encode(value) + b"\n\n"


def ndjson(value: Any) -> bytes:
    return _encoder.encode(value) + b"\n"


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encoder.encode(value), status, headers, "application/json")
