"""The routes that make embeddings, over a fake core."""

from __future__ import annotations

import base64
import struct
from typing import Any

import httpx
import pytest
from fake_core import FakeCore

from manifests.names import parse_name
from manifests.store import Store
from server.calls import Begun, Ended, Vectors
from server.errors import BadRequest, EndedEarly, QueueFull
from server.protocol import Timings

VECTORS = [(0.6, -0.8), (1.0, 0.0), (0.28125, 0.96)]
PACKED = tuple(struct.pack("<2f", *vector) for vector in VECTORS)
BEGUN = Begun(7, 0.25)
ENDED = Ended("stop", 7, 0, Timings(0.5, 0, 3, 8192), 3.0)


@pytest.fixture(autouse=True)
def script(core: FakeCore) -> None:
    core.script = [Vectors(PACKED[:2]), Vectors(PACKED[2:]), BEGUN, ENDED]


async def openai(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/v1/embeddings", json={"model": "base", **body})


async def test_openai_answers_a_vector_for_each_input(
    client: httpx.AsyncClient, core: FakeCore
) -> None:
    answer = await openai(client, input=["a", "b", "c"], user="somebody")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["object"] == "list"
    assert body["model"] == "base:latest"
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert (body["timings"]["major_faults"], body["timings"]["read_bytes"]) == (3, 8192)
    assert [(d["object"], d["index"]) for d in body["data"]] == [("embedding", n) for n in range(3)]
    assert [d["embedding"] for d in body["data"]] == [pytest.approx(each) for each in VECTORS]
    (call,) = core.embeds
    assert (call.inputs, call.truncate, call.dimensions) == (["a", "b", "c"], False, None)
    assert call.endpoint == "/v1/embeddings"
    assert core.closed == [call.id]


async def test_base64_is_the_same_numbers(client: httpx.AsyncClient) -> None:
    plain = (await openai(client, input="a", encoding_format="float")).json()["data"]
    coded = (await openai(client, input="a", encoding_format="base64")).json()["data"]
    for one, other in zip(plain, coded, strict=True):
        raw = base64.b64decode(other["embedding"])
        assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == one["embedding"]


@pytest.mark.parametrize(
    "given, inputs",
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([[1, 2], "a"], [[1, 2], "a"]),
    ],
)
async def test_openai_takes_every_shape_of_input(
    client: httpx.AsyncClient, core: FakeCore, given: Any, inputs: Any
) -> None:
    assert (await openai(client, input=given, dimensions=5)).status_code == 200
    assert core.embeds[0].inputs == inputs
    assert core.embeds[0].dimensions == 5


@pytest.mark.parametrize(
    "body, param",
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", []]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "5"}, "dimensions"),
    ],
)
async def test_openai_refuses_by_name(
    client: httpx.AsyncClient, core: FakeCore, body: dict[str, Any], param: str
) -> None:
    answer = await openai(client, **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert core.embeds == []


async def test_as_many_inputs_as_openai_allows(client: httpx.AsyncClient, core: FakeCore) -> None:
    core.script = [Vectors(PACKED[:1] * 2048), BEGUN, ENDED]
    answer = await openai(client, input=["a"] * 2048)
    assert [each["index"] for each in answer.json()["data"]] == list(range(2048))


async def test_ollama_answers_vectors_and_durations(
    client: httpx.AsyncClient, core: FakeCore
) -> None:
    body = {"model": "base", "input": ["a", "b", "c"], "options": {"num_ctx": 9}, "keep_alive": 60}
    answer = (await client.post("/api/embed", json=body)).json()
    assert answer["model"] == "base:latest"
    assert answer["embeddings"] == [pytest.approx(each) for each in VECTORS]
    assert answer["total_duration"] == 3_000_000_000
    assert answer["load_duration"] == 250_000_000
    assert answer["prompt_eval_count"] == 7
    assert (answer["major_faults"], answer["read_bytes"]) == (3, 8192)
    (call,) = core.embeds
    assert (call.truncate, call.dimensions, call.spec.keep_alive) == (True, None, 60)


async def test_ollamas_truncate_and_dimensions(client: httpx.AsyncClient, core: FakeCore) -> None:
    for truncate, dimensions in ((False, 4), (None, 0), (True, None)):
        body = {"model": "base", "input": "a", "truncate": truncate, "dimensions": dimensions}
        assert (await client.post("/api/embed", json=body)).status_code == 200
    assert [(call.truncate, call.dimensions) for call in core.embeds] == [
        (False, 4),
        (True, None),
        (True, None),
    ]


async def test_ollamas_first_route_takes_one_text(
    client: httpx.AsyncClient, core: FakeCore
) -> None:
    core.script = [Vectors(PACKED[:1]), BEGUN, ENDED]
    answer = await client.post("/api/embeddings", json={"model": "base", "prompt": "a"})
    assert answer.json() == {"embedding": pytest.approx(list(VECTORS[0]))}
    assert core.embeds[0].inputs == ["a"]


@pytest.mark.parametrize(
    "path, body",
    [
        ("/api/embed", {"input": ""}),
        ("/api/embed", {"input": []}),
        ("/api/embed", {"input": ["a", ""]}),
        ("/api/embed", {"input": [1, 2]}),
        ("/api/embed", {"input": "a", "truncate": "no"}),
        ("/api/embeddings", {"prompt": ""}),
        ("/api/embeddings", {}),
    ],
)
async def test_ollama_refuses(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    answer = await client.post(path, json={"model": "base", **body})
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]


@pytest.mark.parametrize("error", [QueueFull("full"), BadRequest("long")])
@pytest.mark.parametrize(
    "path, text",
    [("/v1/embeddings", "input"), ("/api/embed", "input"), ("/api/embeddings", "prompt")],
)
async def test_errors_have_their_status(
    client: httpx.AsyncClient, core: FakeCore, error: BadRequest, path: str, text: str
) -> None:
    core.script = [error]
    answer = await client.post(path, json={"model": "base", text: "a"})
    assert answer.status_code == error.status


async def test_a_call_that_a_shutdown_ends_has_no_answer(
    client: httpx.AsyncClient, core: FakeCore
) -> None:
    core.script = [Vectors(PACKED[:1]), EndedEarly("the request ended early: cancelled")]
    answer = await openai(client, input=["a", "b"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ended_early")


ENCODER = {"metadata": {"bert.attention.causal": False}, "architecture": "bert"}


async def test_an_encoder_writes_no_text(
    client: httpx.AsyncClient, core: FakeCore, store: Store
) -> None:
    for name in ("chatty", "base"):
        manifest = store.get(parse_name(name))
        details = manifest.details.model_copy(update=ENCODER)
        store.put(parse_name(name), manifest.model_copy(update={"details": details}))
    messages = [{"role": "user", "content": "Hi"}]
    for path, more in (
        ("/v1/chat/completions", {"messages": messages}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/api/chat", {"messages": messages}),
        ("/api/generate", {"prompt": "Hi"}),
    ):
        for name in ("chatty", "base"):
            answer = await client.post(path, json={"model": name, **more})
            assert answer.status_code == 400
            assert f"{name}:latest is an encoder: it makes embeddings" in answer.text
    assert core.calls == []
    assert (await openai(client, input="a")).status_code == 200
    shown = (await client.post("/api/show", json={"model": "base"})).json()
    assert shown["capabilities"] == ["embedding"]
    assert shown["effective"]["n_ubatch"]["value"] == 4096
