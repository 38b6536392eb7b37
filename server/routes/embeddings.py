"""The routes that make embeddings, OpenAI's and Ollama's.

An answer of 2,048 vectors is long: it is written piece by piece, once all of them are there.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import itertools
from array import array
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.bodies import read_body
from server.calls import Begun, Core, EmbedCall, Ended, Vectors
from server.catalog import Model
from server.prompts import new_id
from server.routes.embeddings_schema import (
    EmbeddingsRequest,
    EmbedRequest,
    OldEmbedRequest,
    Usage,
)
from server.routes.openai_shapes import timings
from server.services import services_of
from server.streams import LiveStream, while_connected

router = APIRouter()

# One after the other, so that other requests have their turn between them.
_VECTORS_A_PIECE = 16
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Embeddings:
    """What came of a call: a vector for each input, in float32, little-endian."""

    model: str
    vectors: list[bytes]
    begun: Begun
    ended: Ended


@router.post("/v1/embeddings")
async def embeddings(request: Request) -> Response:
    asked = await read_body(request, EmbeddingsRequest)
    model = await services_of(request).catalog.model(asked.model)
    call = _call(model, "/v1/embeddings", asked.input, dimensions=asked.dimensions)
    written = _base64 if asked.encoding_format == "base64" else _numbers
    return await _answer(request, call, lambda found: _openai_pieces(found, written))


@router.post("/api/embed")
async def embed(request: Request) -> Response:
    asked = await read_body(request, EmbedRequest)
    model = await services_of(request).catalog.model(asked.model_name)
    call = _call(
        model,
        "/api/embed",
        asked.input,
        truncate=asked.truncate is not False,
        dimensions=asked.dimensions or None,
        keep_alive=asked.keep_alive,
    )
    return await _answer(request, call, _ollama_pieces)


@router.post("/api/embeddings")
async def old_embeddings(request: Request) -> Response:
    asked = await read_body(request, OldEmbedRequest)
    model = await services_of(request).catalog.model(asked.model_name)
    call = _call(
        model, "/api/embeddings", [asked.prompt], truncate=True, keep_alive=asked.keep_alive
    )
    return await _answer(request, call, _old_ollama_pieces)


def _call(
    model: Model,
    endpoint: str,
    inputs: list[str | list[int]],
    *,
    truncate: bool = False,
    dimensions: int | None = None,
    keep_alive: float | None = None,
) -> EmbedCall:
    spec = model.spec()
    if keep_alive is not None:
        spec = dataclasses.replace(spec, keep_alive=keep_alive)
    return EmbedCall(new_id("embd"), endpoint, spec, inputs, truncate, dimensions)


async def _answer(
    request: Request, call: EmbedCall, pieces: Callable[[Embeddings], Iterator[bytes]]
) -> Response:
    found = await while_connected(request, _embedded(services_of(request).core, call))
    frames = _frames(pieces(found))
    return LiveStream(frames, frames, "application/json")


async def _frames(pieces: Iterator[bytes]) -> AsyncGenerator[bytes]:
    for piece in pieces:
        yield piece
        # A write that the socket takes at once gives nobody a turn.
        await asyncio.sleep(0)


async def _embedded(core: Core, call: EmbedCall) -> Embeddings:
    vectors: list[bytes] = []
    begun: Begun | None = None
    async with contextlib.aclosing(core.embed(call)) as events:
        async for event in events:
            match event:
                case Vectors():
                    vectors += event.vectors
                case Begun():
                    begun = event
                case Ended():
                    assert begun is not None
                    return Embeddings(call.spec.name, vectors, begun, event)
    raise AssertionError("the events have no end")


def _openai_pieces(found: Embeddings, written: Callable[[bytes], bytes]) -> Iterator[bytes]:
    items = (
        b'{"object":"embedding","index":%d,"embedding":%b}' % (index, written(vector))
        for index, vector in enumerate(found.vectors)
    )
    yield b'{"object":"list","data":['
    yield from _joined(items)
    n_tokens = found.ended.prompt_tokens
    usage = _encode(Usage(n_tokens, n_tokens))
    told = _encode(timings(found.ended))
    yield b'],"model":%b,"usage":%b,"timings":%b}' % (_encode(found.model), usage, told)


def _ollama_pieces(found: Embeddings) -> Iterator[bytes]:
    yield b'{"model":%b,"embeddings":[' % _encode(found.model)
    yield from _joined(map(_numbers, found.vectors))
    cost = found.ended.timings
    yield b'],"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d,"major_faults":%d' % (
        _nanoseconds(found.ended.total_seconds),
        _nanoseconds(found.begun.load_seconds),
        found.ended.prompt_tokens,
        cost.major_faults,
    )
    yield b"}" if cost.read_bytes is None else b',"read_bytes":%d}' % cost.read_bytes


def _old_ollama_pieces(found: Embeddings) -> Iterator[bytes]:
    yield b'{"embedding":%b}' % _numbers(found.vectors[0])


def _joined(items: Iterator[bytes]) -> Iterator[bytes]:
    """The items with commas between them, several at a time."""
    before = b""
    while chunk := list(itertools.islice(items, _VECTORS_A_PIECE)):
        yield before + b",".join(chunk)
        before = b","


def _numbers(vector: bytes) -> bytes:
    return _encode(array("f", vector).tolist())


def _base64(vector: bytes) -> bytes:
    return b'"%b"' % base64.b64encode(vector)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
