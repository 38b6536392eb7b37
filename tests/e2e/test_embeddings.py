"""Embeddings over HTTP, from real models: a decoder that also writes text, and an encoder."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from daemon import Daemon, sse, until
from made_models import write_bert

TEXTS = ["the sea is blue", "tax law", "the sea is blue"]


@pytest.fixture(scope="module")
def bert(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    daemon.pull("bert", write_bert(tmp_path_factory.mktemp("bert") / "bert.gguf"))
    return "bert"


def post(daemon: Daemon, path: str, **body: Any) -> Any:
    answer = daemon.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("model", ["smollm2", "bert"])
def test_all_routes_and_formats_give_the_same_vectors(
    daemon: Daemon, bert: str, model: str
) -> None:
    found = post(daemon, "/v1/embeddings", model=model, input=TEXTS)
    vectors = [each["embedding"] for each in found["data"]]
    assert [dot(v, v) for v in vectors] == [pytest.approx(1, abs=1e-5)] * 3
    assert dot(vectors[0], vectors[2]) > 0.9999 > dot(vectors[0], vectors[1])
    assert found["usage"]["prompt_tokens"] > len(TEXTS)

    coded = post(daemon, "/v1/embeddings", model=model, input=TEXTS, encoding_format="base64")
    for each, vector in zip(coded["data"], vectors, strict=True):
        raw = base64.b64decode(each["embedding"])
        assert dot(list(struct.unpack(f"<{len(vector)}f", raw)), vector) > 0.9999

    ollama = post(daemon, "/api/embed", model=model, input=TEXTS)
    assert ollama["prompt_eval_count"] == found["usage"]["prompt_tokens"]
    for one, other in zip(ollama["embeddings"], vectors, strict=True):
        assert dot(one, other) > 0.9999
    first = post(daemon, "/api/embeddings", model=model, prompt=TEXTS[0])
    assert dot(first["embedding"], vectors[0]) > 0.9999


def test_as_many_inputs_as_openai_allows(daemon: Daemon, bert: str) -> None:
    texts = [f"{'the sea is deep ' * (n % 7)}{n}" for n in range(2048)]
    found = post(daemon, "/v1/embeddings", model=bert, input=texts)
    assert [each["index"] for each in found["data"]] == list(range(2048))
    # Each in its own place.
    for n in (0, 1, 1000, 2047):
        alone = post(daemon, "/v1/embeddings", model=bert, input=texts[n])["data"][0]
        assert dot(alone["embedding"], found["data"][n]["embedding"]) > 0.9999
    answer = daemon.client.post("/v1/embeddings", json={"model": bert, "input": [*texts, "x"]})
    assert answer.status_code == 400


def test_an_input_that_is_too_long(daemon: Daemon, bert: str) -> None:
    long = "the sea " * 100
    for path, more in (("/v1/embeddings", {}), ("/api/embed", {"truncate": False})):
        answer = daemon.client.post(path, json={"model": bert, "input": ["a", long], **more})
        assert answer.status_code == 400
        assert "input 1 has 202 tokens, and this model takes 128 tokens" in answer.text
    cut = post(daemon, "/api/embed", model=bert, input=["a", long])
    assert cut["prompt_eval_count"] == 3 + 128


def test_an_encoder_writes_no_text_and_can_be_loaded(daemon: Daemon, bert: str) -> None:
    daemon.load(bert)
    answer = daemon.client.post("/v1/completions", json={"model": bert, "prompt": "the sea"})
    assert answer.status_code == 400
    assert "bert:latest is an encoder" in answer.json()["error"]["message"]
    (row,) = [
        r for r in daemon.client.get("/api/ps").json()["models"] if r["name"] == "bert:latest"
    ]
    assert row["context_length"] == 128


def test_embeddings_are_in_the_metrics_and_the_ledger_of_memory(daemon: Daemon) -> None:
    daemon.unload("smollm2")
    daemon.load("smollm2")
    (before,) = sizes(daemon)
    usage = post(daemon, "/v1/embeddings", model="smollm2", input=TEXTS)["usage"]
    (after,) = sizes(daemon)
    # 4,096 cells of 23,040 bytes, a second time; llama.cpp tells it to 0.01 MiB.
    assert after - before == pytest.approx(4096 * 23_040, abs=2 * 0.01 * 2**20)
    metrics = daemon.metrics()
    labels = 'endpoint="/v1/embeddings",model="smollm2:latest",status="200"'
    assert metrics[f"corral_requests_total{{{labels}}}"] == 1
    assert metrics['corral_prompt_tokens_total{model="smollm2:latest"}'] == usage["prompt_tokens"]


def sizes(daemon: Daemon) -> Iterator[int]:
    rows = daemon.client.get("/api/ps").json()["models"]
    return (row["size"] for row in rows if row["name"] == "smollm2:latest")


def test_a_stream_goes_on_beside_a_job_that_then_loses_its_client(daemon: Daemon) -> None:
    running = 'corral_requests_running{model="smollm2:latest"}'
    daemon.load("smollm2")
    job = {"model": "smollm2", "input": ["the quick brown fox jumps over the lazy dog"] * 2000}
    ask = {"model": "smollm2", "prompt": "Once", "max_tokens": 12, "ignore_eos": True}
    with (
        httpx.Client(base_url=daemon.client.base_url, timeout=110) as other,
        other.stream("POST", "/v1/completions", json={**ask, "stream": True}) as stream,
    ):
        events = sse(stream.iter_lines())
        next(events)
        with pytest.raises(httpx.ReadTimeout):
            daemon.client.post("/v1/embeddings", json=job, timeout=httpx.Timeout(110, read=0.5))
        # The slot is taken, and yet the job was running; its client is gone now.
        assert sum(1 for _ in events) >= 5
    until(lambda: daemon.metrics()[running] == 0)
    labels = 'endpoint="/v1/embeddings",model="smollm2:latest",status="499"'
    assert daemon.metrics()[f"corral_requests_total{{{labels}}}"] == 1
    assert len(post(daemon, "/v1/embeddings", model="smollm2", input=TEXTS)["data"]) == 3
