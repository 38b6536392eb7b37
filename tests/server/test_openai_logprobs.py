"""logprobs over the OpenAI routes, whole and as streams, over a fake core."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_core import ENDED, FakeCore

from server.calls import Begun, Text
from server.protocol import Likelihood, TokenLogprobs
from server.routes.openai_logprobs import CompletionShape

HI = TokenLogprobs(Likelihood(b"Hi", -0.5), [Likelihood(b"Hi", -0.5), Likelihood(b"\xe2\x80", -2)])
THERE = TokenLogprobs(Likelihood(b" there", -0.25), [Likelihood(b"!", -0.1)])
CHAT = {"model": "chatty", "messages": [{"role": "user", "content": "Hi"}]}
PLAIN = {"model": "chatty", "prompt": "Hi"}
HI_IN_CHAT = {
    "token": "Hi",
    "logprob": -0.5,
    "bytes": [72, 105],
    "top_logprobs": [
        {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]},
        {"token": "\ufffd", "logprob": -2, "bytes": [0xE2, 0x80]},
    ],
}


@pytest.fixture(autouse=True)
def script(core: FakeCore) -> None:
    core.script = (Begun(5, 0), Text("Hi", (HI,)), Text(" there", (THERE,)), ENDED)


async def whole(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0].get("logprobs")


async def streamed(client: httpx.AsyncClient, path: str, **body: Any) -> list[Any]:
    answer = await client.post(path, json={**body, "stream": True})
    frames = [frame.removeprefix("data: ") for frame in answer.text.split("\n\n") if frame]
    assert frames.pop() == "[DONE]"
    choices = [choice for frame in frames for choice in json.loads(frame)["choices"]]
    return [choice["logprobs"] for choice in choices if "logprobs" in choice]


async def test_chat_tells_tokens_with_their_bytes(
    client: httpx.AsyncClient, core: FakeCore
) -> None:
    told = await whole(client, "/v1/chat/completions", **CHAT, logprobs=True, top_logprobs=2)
    assert told["content"][0] == HI_IN_CHAT
    assert [token["token"] for token in told["content"]] == ["Hi", " there"]
    assert told["refusal"] is None
    assert core.calls[0].logprobs == 2


async def test_chat_streams_them_with_their_text(client: httpx.AsyncClient) -> None:
    told = await streamed(client, "/v1/chat/completions", **CHAT, logprobs=True, top_logprobs=2)
    assert [[token["token"] for token in each["content"]] for each in told] == [["Hi"], [" there"]]
    assert told[0]["content"] == [HI_IN_CHAT]


async def test_completions_tell_lists_with_offsets(client: httpx.AsyncClient) -> None:
    assert await whole(client, "/v1/completions", **PLAIN, logprobs=2) == {
        "tokens": ["Hi", " there"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"Hi": -0.5, "bytes:\\xe2\\x80": -2}, {"!": -0.1}],
        "text_offset": [0, 2],
    }
    told = await streamed(client, "/v1/completions", **PLAIN, logprobs=2)
    assert [each["text_offset"] for each in told] == [[0], [2]]


def test_offsets_count_characters_over_tokens_that_hold_parts_of_one() -> None:
    pieces = ["é".encode()[:1], "é".encode()[1:], b"a", b"b"]
    shape = CompletionShape()
    told = [shape.add([TokenLogprobs(Likelihood(piece, 0), [])]) for piece in pieces]
    assert [each.text_offset for each in told] == [[0], [0], [1], [2]]
    assert told[0].tokens == ["bytes:\\xc3"]
    assert told[0].top_logprobs is None


async def test_who_does_not_ask_gets_none(client: httpx.AsyncClient, core: FakeCore) -> None:
    assert await whole(client, "/v1/chat/completions", **CHAT) is None
    assert await whole(client, "/v1/chat/completions", **CHAT, logprobs=False) is None
    assert await streamed(client, "/v1/completions", **PLAIN) == []
    assert [call.logprobs for call in core.calls] == [None] * 3


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {**CHAT, "top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/chat/completions", {**CHAT, "logprobs": 3}, "logprobs"),
        ("/v1/completions", {**PLAIN, "logprobs": 6}, "logprobs"),
        ("/v1/completions", {**PLAIN, "logprobs": True}, "logprobs"),
    ],
)
async def test_numbers_are_bounded(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
