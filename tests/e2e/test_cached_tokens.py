"""What usage.prompt_tokens_details tells of prompts that were in the KV cache already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from daemon import Daemon, sse

Message = dict[str, str]
CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def empty_cache(daemon: Daemon) -> None:
    # Two threads would wait for each other on a busy machine.
    daemon.edit("smollm2", loader={"n_threads": 1})
    daemon.unload("smollm2:latest")


def chat(*turns: str, system: str = "") -> list[Message]:
    roles = ["user", "assistant"] * len(turns)
    messages = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
    return [{"role": "system", "content": system}, *messages]


def body(messages: Sequence[Message], **more: object) -> dict[str, object]:
    return {
        "model": "smollm2",
        "messages": messages,
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }


def answer(daemon: Daemon, messages: Sequence[Message]) -> dict[str, Any]:
    got = daemon.client.post(CHAT, json=body(messages))
    assert got.status_code == 200, got.text
    return dict(got.json())


def tokens(answer: dict[str, Any]) -> tuple[int, int]:
    """Of the prompt: cached ones, and all."""
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    # llama-server's figures count the others.
    assert answer["timings"]["cache_n"] == cached
    assert answer["timings"]["prompt_n"] == usage["prompt_tokens"] - cached
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return cached, usage["prompt_tokens"]


RULES = "You are a librarian. " + " ".join(f"Shelf {n} holds books on topic {n}." for n in range(9))


def test_the_next_turn_of_a_conversation_is_charged_for_what_is_new(daemon: Daemon) -> None:
    question = "Which shelf holds books on topic 4?"
    first = answer(daemon, chat(question, system=RULES))
    cached, n_prompt = tokens(first)
    assert cached == 0
    said = first["choices"][0]["message"]["content"]
    cached, _ = tokens(answer(daemon, chat(question, said, "And topic 5?", system=RULES)))
    # The prompt, and the answer but for where it joins what follows.
    assert n_prompt + 8 <= cached <= n_prompt + 12


def test_the_same_request_again_computes_one_token(daemon: Daemon) -> None:
    messages = chat("Which shelf holds books on topic 4?", system=RULES)
    once, again = answer(daemon, messages), answer(daemon, messages)
    cached, n_prompt = tokens(again)
    assert cached == n_prompt - 1
    assert again["choices"][0]["message"] == once["choices"][0]["message"]


def test_conversations_with_one_system_prompt_compute_it_once(daemon: Daemon) -> None:
    questions = ("Which shelf?", "How many books are there?", "When do you close?")
    _, n_first = tokens(answer(daemon, chat(questions[0], system=RULES)))
    before = daemon.metrics()
    for question in questions[1:]:
        cached, n_prompt = tokens(answer(daemon, chat(question, system=RULES)))
        # All but the question itself and the words of the template around it.
        assert n_first - 20 < cached < min(n_first, n_prompt)
    name = 'corral_prefix_cache_hits_total{model="smollm2:latest"}'
    assert daemon.metrics()[name] - before[name] > 2 * (n_first - 20)
    other = "You are a pirate, and speak like one. " + RULES
    cached, _ = tokens(answer(daemon, chat(questions[0], system=other)))
    # The template's first words, and where both system prompts are alike.
    assert cached < 10


def test_a_stream_tells_it_with_its_usage(daemon: Daemon) -> None:
    messages = chat("Which shelf holds books on topic 4?", system=RULES)
    _, n_prompt = tokens(answer(daemon, messages))
    asked = body(messages, stream=True, stream_options={"include_usage": True})
    with daemon.client.stream("POST", CHAT, json=asked) as stream:
        assert stream.status_code == 200
        *chunks, last = sse(stream.iter_lines())
    assert last["choices"] == []
    assert tokens(last) == (n_prompt - 1, n_prompt)
    assert not any(chunk.get("usage") for chunk in chunks)


def test_a_plain_completion_tells_it_too(daemon: Daemon) -> None:
    def cached(end: str) -> int:
        asked = {"model": "smollm2", "prompt": RULES + end, "max_tokens": 4}
        return tokens(daemon.client.post("/v1/completions", json=asked).json())[0]

    assert cached(" It is") == 0
    assert cached(" There are") > 50
