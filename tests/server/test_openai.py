"""The OpenAI routes, over a fake core."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest
from fake_core import FakeCore

from manifests.manifest import Message, Parameters
from manifests.names import parse_name
from manifests.store import Store
from server.calls import Begun, Text
from server.errors import QueueFull, WorkerDied
from server.protocol import Sampling
from server.routes.openai_schema import CompletionRequest

ASK: dict[str, Any] = {"model": "chatty", "messages": [{"role": "user", "content": "Hi"}]}


def events(text: str) -> list[Any]:
    """The data of a stream's events; [DONE] as it is."""
    frames = [frame.removeprefix("data: ") for frame in text.split("\n\n") if frame]
    return [frame if frame == "[DONE]" else json.loads(frame) for frame in frames]


async def chat(client: httpx.AsyncClient, **more: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={**ASK, **more})


async def test_chat_answers_whole(client: httpx.AsyncClient, core: FakeCore) -> None:
    answer = await chat(client)
    assert answer.status_code == 200
    body = answer.json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "chatty:latest"
    assert body["choices"] == [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "Hello"},
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    # The three that were not cached took half a second.
    assert (body["timings"]["cache_n"], body["timings"]["prompt_n"]) == (2, 3)
    assert body["timings"]["prompt_per_second"] == 6
    assert body["timings"]["predicted_ms"] == 2000
    assert (body["timings"]["major_faults"], body["timings"]["read_bytes"]) == (7, 4096)
    (call,) = core.calls
    assert call.prompt == "<user>Hi<assistant>"
    assert call.max_tokens == -1
    assert call.spec.load.residency == "eager"
    assert core.closed == [call.id]


async def test_chat_streams(client: httpx.AsyncClient) -> None:
    answer = await chat(client, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = events(answer.text)
    assert done == "[DONE]"
    assert chunks[-1]["timings"]["read_bytes"] == usage["timings"]["read_bytes"] == 4096
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 8
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_a_stream_without_include_usage_has_none(client: httpx.AsyncClient) -> None:
    answer = await chat(client, stream=True)
    assert all(chunk == "[DONE]" or "usage" not in chunk for chunk in events(answer.text))


async def test_completions_take_every_form_of_prompt(
    client: httpx.AsyncClient, core: FakeCore
) -> None:
    for prompt, expected in (
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ):
        core.calls.clear()
        body = {"model": "base", "prompt": prompt, "max_tokens": 4, "stop": "x"}
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert [call.prompt for call in core.calls] == expected
        assert [choice["text"] for choice in answer.json()["choices"]] == ["Hello"] * len(expected)
        assert answer.json()["id"].startswith("cmpl-")
        assert core.calls[0].max_tokens == 4
        assert core.calls[0].stop == ("x",)


async def test_n_answers_have_their_own_seeds_and_one_prompt(
    client: httpx.AsyncClient, core: FakeCore
) -> None:
    answer = await chat(client, n=3, seed=2**32 - 2)
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2]
    assert [call.sampling.seed for call in core.calls] == [2**32 - 2, 0, 1]
    assert len({call.id for call in core.calls}) == 3
    assert answer.json()["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 9,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    streamed = await chat(client, n=2, stream=True)
    chunks = events(streamed.text)[:-1]
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content", "")
    assert texts == {0: "Hello", 1: "Hello"}


async def test_request_overrules_the_model_which_overrules_the_built_in(
    client: httpx.AsyncClient, core: FakeCore, store: Store
) -> None:
    parameters = Parameters(temperature=0.1, top_k=7, stop=("END",), num_predict=9, seed=-1)
    store.edit(
        parse_name("chatty"), lambda stored: stored.model_copy(update={"parameters": parameters})
    )
    await chat(client, top_k=3, logit_bias={"5": -100}, max_completion_tokens=2, max_tokens=3)
    await chat(client, stop=["a", "b"])
    first, second = core.calls
    assert first.sampling == Sampling(temperature=0.1, top_k=3, logit_bias={5: -100.0})
    assert (first.stop, first.max_tokens) == (("END",), 2)
    assert (second.stop, second.max_tokens) == (("a", "b"), 9)


async def test_the_models_system_and_messages_shape_the_prompt(
    client: httpx.AsyncClient, core: FakeCore, store: Store
) -> None:
    shape = {"system": "Be brief.", "messages": (Message(role="user", content="1"),)}
    store.edit(parse_name("chatty"), lambda stored: stored.model_copy(update=shape))
    await chat(client)
    own = [{"role": "developer", "content": "Own."}, {"role": "user", "content": "Hi"}]
    await chat(client, messages=own)
    assert core.calls[0].prompt == "<system>Be brief.<user>1<user>Hi<assistant>"
    assert core.calls[1].prompt == "<system>Own.<user>1<user>Hi<assistant>"


async def test_content_parts_are_joined(client: httpx.AsyncClient, core: FakeCore) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await chat(client, messages=[{"role": "user", "content": parts}])
    assert core.calls[0].prompt == "<user>ab<assistant>"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"seed": 2**70}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"model": None}, "model"),
    ],
)
async def test_what_cannot_be_done_names_its_parameter(
    client: httpx.AsyncClient, core: FakeCore, change: dict[str, Any], param: str
) -> None:
    answer = await chat(client, **change)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].split(".")[0] == param
    assert param in error["message"]
    assert error["type"] == "invalid_request_error"
    assert core.calls == []


async def test_a_range_is_told_with_its_bound_and_the_value(client: httpx.AsyncClient) -> None:
    answer = await chat(client, top_p=1.5)
    assert answer.json()["error"]["message"] == (
        "top_p: Input should be less than or equal to 1, not 1.5"
    )


async def test_extras_of_clients_are_ignored(client: httpx.AsyncClient) -> None:
    answer = await chat(
        client, user="u", metadata={}, store=False, tools=[], logprobs=False, n=1, top_logprobs=None
    )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'{"model": "chatty", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "chatty", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "chatty", "temperature": NaN, "messages": []}',
        b'{"model": "chatty", "messages": ' + b"[" * 100_000,
        b'{"model": "chatty", "max_tokens": ' + b"9" * 5000 + b', "messages": []}',
        b'{"model": "\\u0000", "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "../x", "messages": [{"role": "user", "content": "x"}]}',
    ],
)
async def test_no_body_makes_the_server_fail(client: httpx.AsyncClient, body: bytes) -> None:
    answer = await client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


async def test_a_body_has_a_size(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", content=b" " * ((32 << 20) + 1))
    assert answer.status_code == 413
    assert "33554432" in answer.json()["error"]["message"]


async def test_a_large_body_is_read_beside_the_event_loop(
    client: httpx.AsyncClient, core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    real = CompletionRequest.model_validate_json

    def noted(body: bytes) -> CompletionRequest:
        threads.append(threading.current_thread().name)
        return real(body)

    monkeypatch.setattr(CompletionRequest, "model_validate_json", noted)
    for size in (1 << 10, 1 << 20):
        answer = await client.post("/v1/completions", json={"model": "base", "prompt": "x" * size})
        assert answer.status_code == 200, answer.text
    assert threads[0] == "MainThread"
    assert threads[1] != "MainThread"


@pytest.mark.parametrize(
    ("prompt", "status", "words"),
    [
        ([1] * ((1 << 20) + 1), 400, "1048577 token ids, at most 1048576"),
        ([1] * ((2 << 20) + 2), 413, "2097152 values"),
        (["x"] * 65, 400, "65 prompts, at most 64"),
        ([1, True], 400, "token ids"),
        ([1, 2**31], 400, "token ids"),
        ([-1], 400, "token ids"),
        ([1, "x"], 400, "token ids"),
        ([[]], 400, "token ids"),
    ],
    ids=range(8),
)
async def test_prompts_are_bounded(
    client: httpx.AsyncClient, prompt: list[object], status: int, words: str
) -> None:
    answer = await client.post("/v1/completions", json={"model": "base", "prompt": prompt})
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


async def test_a_request_may_ask_for_what_a_model_may_set(
    client: httpx.AsyncClient, core: FakeCore
) -> None:
    edge = {
        "presence_penalty": 3,
        "frequency_penalty": -100,
        "top_k": 2**31 - 1,
        "stop": ["x"] * 64,
    }
    Parameters.model_validate({**edge, "seed": 2**40})
    assert (await chat(client, **edge, seed=2**40)).status_code == 200
    await chat(client, stop=["", "x"])
    await chat(client, stop="")
    assert [len(call.stop) for call in core.calls] == [64, 1, 0]


async def test_chat_without_a_template_says_what_to_do(client: httpx.AsyncClient) -> None:
    answer = await chat(client, model="base")
    assert answer.status_code == 400
    assert "/v1/completions" in answer.json()["error"]["message"]
    assert "/api/edit" in answer.json()["error"]["message"]


async def test_unknown_model_is_404(client: httpx.AsyncClient) -> None:
    answer = await chat(client, model="nobody")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_before_the_first_byte_has_its_status(
    client: httpx.AsyncClient, core: FakeCore, stream: bool
) -> None:
    core.script = [QueueFull("full: 512 requests wait")]
    answer = await chat(client, stream=stream)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == "queue_full"


async def test_an_error_after_the_first_byte_is_an_event(
    client: httpx.AsyncClient, core: FakeCore
) -> None:
    core.script = [Begun(5, 0), Text("Hel"), WorkerDied("killed by signal 9")]
    answer = await chat(client, stream=True)
    assert answer.status_code == 200
    last = events(answer.text)[-1]
    assert last["error"]["message"] == "killed by signal 9"
    assert last["error"]["code"] == "worker_died"
    assert (await chat(client)).status_code == 500


async def test_models_are_listed_and_shown(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["base:latest", "chatty:latest"]
    assert (await client.get("/v1/models/chatty")).json()["id"] == "chatty:latest"
    assert (await client.get("/v1/models/nobody")).status_code == 404
    assert (await client.get("/v1/models/a/../b")).status_code in (400, 404)


async def test_unknown_routes_answer_in_the_familys_format(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/nothing")).json()["error"]["message"] == "Not Found"
    wrong = await client.get("/v1/chat/completions")
    assert wrong.status_code == 405
    assert wrong.json()["error"]["type"] == "invalid_request_error"
    assert (await client.post("/api/nothing")).json() == {"error": "Not Found"}
