"""The Ollama routes that generate, list and show, over a fake core."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_core import READY, FakeCore

from manifests.names import parse_name
from manifests.store import Store
from server.calls import Begun, LoadedModel, Text
from server.errors import WorkerDied
from server.protocol import PinReport
from server.services import Services


def lines(answer: httpx.Response) -> list[Any]:
    return [json.loads(line) for line in answer.text.splitlines()]


async def generate(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/api/generate", json={"model": "chatty", **body})


async def test_generate_streams_by_default(client: httpx.AsyncClient, core: FakeCore) -> None:
    answer = await generate(client, prompt="Hi", keep_alive="10m")
    assert answer.headers["content-type"] == "application/x-ndjson"
    first, second, last = lines(answer)
    assert (first["response"], second["response"], last["response"]) == ("Hel", "lo", "")
    assert [row["done"] for row in (first, second, last)] == [False, False, True]
    assert last["done_reason"] == "stop"
    assert last["total_duration"] == 3_000_000_000
    assert last["load_duration"] == 250_000_000
    assert last["prompt_eval_count"] == 5
    assert last["prompt_eval_duration"] == 500_000_000
    assert last["eval_count"] == 3
    assert last["eval_duration"] == 2_000_000_000
    assert (last["major_faults"], last["read_bytes"]) == (7, 4096)
    assert core.calls[0].prompt == "<user>Hi<assistant>"
    assert core.calls[0].spec.keep_alive == 600


async def test_generate_whole(client: httpx.AsyncClient) -> None:
    body = (await generate(client, prompt="Hi", stream=False)).json()
    assert (body["response"], body["done"], body["eval_count"]) == ("Hello", True, 3)


async def test_a_system_text_needs_a_template_to_stand_in(client: httpx.AsyncClient) -> None:
    answer = await generate(client, prompt="Hi", model="base", system="Be brief.")
    assert answer.status_code == 400
    assert "base:latest has no chat template" in answer.json()["error"]


async def test_generate_shapes_the_prompt_as_asked(
    client: httpx.AsyncClient, core: FakeCore
) -> None:
    await generate(client, prompt="Hi", system="Be brief.")
    await generate(client, prompt="Hi", raw=True)
    await generate(client, prompt="Hi", template="[{{ messages[-1].content }}]")
    await generate(client, prompt="Hi", model="base")
    assert [call.prompt for call in core.calls] == [
        "<system>Be brief.<user>Hi<assistant>",
        "Hi",
        "[Hi]",
        "Hi",
    ]


async def test_options_are_the_requests_sampling(client: httpx.AsyncClient, core: FakeCore) -> None:
    options = {"temperature": 0, "num_predict": 3, "stop": ["x"], "num_ctx": 99, "seed": 4}
    await generate(client, prompt="Hi", options=options)
    (call,) = core.calls
    assert (call.sampling.temperature, call.sampling.seed) == (0, 4)
    assert (call.max_tokens, call.stop) == (3, ("x",))
    assert call.spec.load.n_ctx == 4096, "a request does not reload the model for others"


async def test_an_empty_prompt_loads_and_with_keep_alive_0_unloads(
    client: httpx.AsyncClient, core: FakeCore
) -> None:
    loaded = (await generate(client, keep_alive=-1)).json()
    assert (loaded["done"], loaded["done_reason"]) == (True, "load")
    assert [(spec.name, spec.keep_alive) for spec in core.loads] == [("chatty:latest", -1)]
    unloaded = (await generate(client, keep_alive=0)).json()
    assert unloaded["done_reason"] == "unload"
    assert core.unloads == ["chatty:latest"]
    assert (await generate(client, model="nobody", keep_alive=0)).status_code == 404


async def test_chat_streams_messages(client: httpx.AsyncClient, core: FakeCore) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    answer = await client.post("/api/chat", json={"model": "chatty", "messages": messages})
    first, _, last = lines(answer)
    assert first["message"] == {"role": "assistant", "content": "Hel"}
    assert last["done"]
    loaded = await client.post("/api/chat", json={"model": "chatty"})
    assert loaded.json()["done_reason"] == "load"


async def test_an_error_in_mid_stream_is_the_last_line(
    client: httpx.AsyncClient, core: FakeCore
) -> None:
    core.script = [Begun(5, 0), Text("Hel"), WorkerDied("killed")]
    answer = await generate(client, prompt="Hi")
    assert answer.status_code == 200
    assert lines(answer)[-1] == {"error": "killed"}
    core.script = [WorkerDied("killed")]
    answer = await generate(client, prompt="Hi")
    assert (answer.status_code, answer.json()) == (500, {"error": "killed"})


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"keep_alive": True}, "keep_alive"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"format": "json"}, "format"),
        ({"images": ["x"]}, "images"),
        ({"suffix": "x"}, "suffix"),
        ({"template": "{% if %}"}, "template"),
        ({"template": "{{ .Prompt }}"}, "Go's template"),
        ({"prompt": 5}, "prompt"),
        ({"model": "", "name": ""}, "model"),
    ],
)
async def test_bad_input_is_named(
    client: httpx.AsyncClient, change: dict[str, Any], names: str
) -> None:
    answer = await generate(client, **{"prompt": "Hi", **change})
    assert answer.status_code == 400
    assert names in answer.json()["error"]


async def test_tags_and_version(client: httpx.AsyncClient, store: Store) -> None:
    models = (await client.get("/api/tags")).json()["models"]
    assert [model["name"] for model in models] == ["base:latest", "chatty:latest"]
    assert models[0]["size"] == 1000
    assert models[0]["modified_at"] == "2026-01-02T00:00:00Z"
    assert models[0]["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "135.00M",
        "quantization_level": "Q4_1",
    }
    assert "version" in (await client.get("/api/version")).json()
    (store.root / "manifests" / "base" / "latest.json").write_text("broken")
    rest = (await client.get("/api/tags")).json()["models"]
    assert [model["name"] for model in rest] == ["chatty:latest"]


async def test_show_tells_options_with_their_source(client: httpx.AsyncClient) -> None:
    shown = (await client.post("/api/show", json={"model": "chatty"})).json()
    assert shown["effective"]["weight_residency"] == {"value": "eager", "source": "default"}
    assert shown["effective"]["n_ctx"] == {"value": 4096, "source": "default"}
    assert shown["model_info"]["llama.context_length"] == 8192
    assert shown["model_info"]["llama.rope.freq_base"] == 10000.0
    assert shown["model_info"]["general.parameter_count"] == 135_000_000
    assert shown["capabilities"] == ["completion", "embedding"]
    assert shown["template"].startswith("{% for m in messages %}")
    assert (await client.post("/api/show", json={"name": "nobody"})).status_code == 404


async def test_ps_tells_what_is_loaded_and_in_ram(
    client: httpx.AsyncClient, core: FakeCore, services: Services
) -> None:
    spec = (await services.catalog.model("chatty")).spec()
    gone = (await services.catalog.model("base")).spec()
    pin = PinReport(900, 3, 1, 0.0, 12, "raise ulimit -l")
    core.models = [
        LoadedModel(spec, 4711, READY, 0, 0, expires_at=0.0, pin=pin),
        LoadedModel(gone, 4712, None, 0, 1, expires_at=None),
    ]
    services.store.delete(parse_name("base"))
    ready, loading = (await client.get("/api/ps")).json()["models"]
    assert ready["name"] == "chatty:latest"
    assert (ready["size"], ready["size_vram"], ready["context_length"]) == (1234, 0, 4096)
    assert ready["expires_at"] == "1970-01-01T00:00:00Z"
    assert (ready["pid"], ready["resident"], ready["locked"]) == (4711, 7, 3)
    assert (ready["to_lock"], ready["pin_error"]) == (900, "raise ulimit -l")
    assert (loading["to_lock"], loading["pin_error"]) == (0, "")
    assert (loading["status"], loading["resident"], loading["details"]) == ("loading", None, None)


async def test_residency_is_the_ledger_and_of_one_model_the_map_too(
    client: httpx.AsyncClient, core: FakeCore, services: Services
) -> None:
    spec = (await services.catalog.model("chatty")).spec()
    core.models = [LoadedModel(spec, 4711, READY, 0, 0, None)]
    one = (await client.get("/api/residency/chatty")).json()
    (cell,) = one.pop("map")
    assert cell == {
        "layer": 0,
        "class": "attn",
        "bytes": 32,
        "backing": {"file": 0, "anonymous": 0, "device": 0},
        "resident_bytes": 24,
        "touched_bytes": 16,
        "locked_bytes": 8,
    }
    assert one["model"] == "chatty:latest"
    assert (one["resident_bytes"], one["anonymous_bytes"], one["probe"]) == (7, None, "mincore")
    assert (await client.get("/api/residency")).json() == {"models": [one]}
    for name, why in (("base", "base:latest is not loaded"), ("nope", "'nope:latest' not found")):
        answer = await client.get(f"/api/residency/{name}")
        assert answer.status_code == 404
        assert why in answer.text


async def test_copy_and_delete(client: httpx.AsyncClient, core: FakeCore, store: Store) -> None:
    body = {"source": "chatty", "destination": "other:tag"}
    assert (await client.post("/api/copy", json=body)).status_code == 200
    original = store.get(parse_name("chatty"))
    assert store.get(parse_name("other:tag")).details == original.details
    gone = await client.request("DELETE", "/api/delete", json={"model": "other:tag"})
    assert gone.status_code == 200
    assert core.unloads == ["other:tag"]
    again = await client.request("DELETE", "/api/delete", json={"model": "other:tag"})
    assert again.status_code == 404
    for name in ("../x", "x:a/b", "x:..", "/etc/passwd"):
        body = {"source": "chatty", "destination": name}
        assert (await client.post("/api/copy", json=body)).status_code == 400
