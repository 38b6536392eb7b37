"""Changing and making stored models over HTTP: edit, pull, create."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_core import READY, FakeCore
from made_models import write_tiny

from manifests.manifest import LoaderOptions, ModelfileLayer, Parameters
from manifests.names import parse_name
from manifests.store import Store
from server.background import Background, WorkCancelled
from server.calls import LoadedModel
from server.services import Services

CHATTY = parse_name("chatty")


async def edit(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/api/edit", json={"model": "chatty", **body})


async def test_edit_says_when_each_key_applies(
    client: httpx.AsyncClient, core: FakeCore, store: Store
) -> None:
    layer = ModelfileLayer(loader=LoaderOptions(n_ctx=512), parameters=Parameters(top_k=1))
    store.edit(CHATTY, lambda stored: stored.model_copy(update={"modelfile": layer}))
    answer = await edit(
        client,
        loader={"weight_residency": "lazy", "n_ctx": 1024},
        parameters={"temperature": 0.5, "top_k": 2},
        system="Be brief.",
        template="{{ messages }}",
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["applies"] == {
        "loader.weight_residency": "next_load",
        "loader.n_ctx": "shadowed",
        "parameters.temperature": "now",
        "parameters.top_k": "shadowed",
        "system": "now",
        "template": "now",
    }
    assert answer.json()["manifest"]["loader"] == {"weight_residency": "lazy", "n_ctx": 1024}
    stored = store.get(CHATTY)
    assert (stored.system, stored.loader.weight_residency) == ("Be brief.", "lazy")
    assert core.unloads == []


async def test_an_edit_of_a_loaded_models_residency_applies_now(
    client: httpx.AsyncClient, core: FakeCore, services: Services, store: Store
) -> None:
    core.models = [
        LoadedModel((await services.catalog.model("chatty")).spec(), 1, READY, 0, 0, None)
    ]
    answer = await edit(
        client,
        loader={"weight_residency": "lazy", "pin": "attn, norm", "repin_requests": 9, "n_ctx": 99},
    )
    assert answer.json()["applies"] == {
        "loader.weight_residency": "now",
        "loader.pin": "now",
        "loader.repin_requests": "now",
        "loader.n_ctx": "next_load",
    }
    (spec,) = core.applied
    assert (spec.load.residency, spec.load.pin) == ("lazy", ["attn", "norm"])
    assert spec.load.repin_requests == 9
    # Nothing of it changed, or nothing of it can: the worker is not asked.
    await edit(client, loader={"weight_residency": "lazy"}, parameters={"top_k": 3})
    await edit(client, loader={"n_ctx": 98})
    assert len(core.applied) == 1
    again = await edit(client, loader={"weight_residency": None}, reload=True)
    assert again.json()["applies"] == {"loader.weight_residency": "next_load"}
    assert (len(core.applied), core.unloads) == (1, ["chatty:latest"])
    layer = ModelfileLayer(loader=LoaderOptions(weight_residency="eager"))
    store.edit(CHATTY, lambda stored: stored.model_copy(update={"modelfile": layer}))
    shadowed = await edit(client, loader={"weight_residency": "pinned", "pin": []})
    assert shadowed.json()["applies"] == {
        "loader.weight_residency": "shadowed",
        "loader.pin": "now",
    }
    assert (core.applied[-1].load.residency, core.applied[-1].load.pin) == ("eager", [])


async def test_racing_edits_apply_what_is_stored_last(
    client: httpx.AsyncClient, core: FakeCore, store: Store
) -> None:
    await asyncio.gather(*(edit(client, loader={"repin_requests": n}) for n in range(1, 20)))
    assert core.applied[-1].load.repin_requests == store.get(CHATTY).loader.repin_requests


async def test_null_removes_and_the_rest_is_kept(client: httpx.AsyncClient, store: Store) -> None:
    await edit(client, parameters={"temperature": 0.5, "top_k": 2}, system="x")
    answer = await edit(client, parameters={"temperature": None}, system=None)
    assert answer.json()["applies"] == {"parameters.temperature": "now", "system": "now"}
    stored = store.get(CHATTY)
    assert (stored.parameters, stored.system) == (Parameters(top_k=2), None)


async def test_reload_unloads(client: httpx.AsyncClient, core: FakeCore) -> None:
    await edit(client, loader={"n_ctx": 256}, reload=True)
    assert core.unloads == ["chatty:latest"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"loader": {"weight_residancy": "lazy"}},
            ["'loader.weight_residency'"],
        ),
        ({"loader": {"weight_residency": "lasy"}}, ["lazy", "lazy_then_pin_resident, resident"]),
        ({"loader": {"weight_residency": ["lazy"]}}, ["weight_residency"]),
        ({"loader": {"pin": ["attn", "atn"]}}, ["loader.pin", "'atn'", "attn", "expert"]),
        ({"loader": {"pin": "attn,"}}, ["loader.pin", "''"]),
        ({"loader": {"pin": [["attn"]]}}, ["loader.pin", "attn"]),
        ({"loader": {"pin": 3}}, ["loader.pin"]),
        ({"loader": {"repin_requests": -1}}, ["repin_requests", "-1"]),
        ({"parameters": {"temprature": 1}}, ["temprature", "temperature"]),
        ({"parameters": {"temperature": "hot"}}, ["temperature", "hot"]),
        ({"sytem": "x"}, ["sytem", "'system'"]),
        ({"template": "a\n{% if %}"}, ["line 2"]),
        ({"template": "{{ .Prompt }}"}, ["Go"]),
        ({"reload": "yes"}, ["reload"]),
    ],
)
async def test_a_bad_edit_is_refused_and_changes_nothing(
    client: httpx.AsyncClient, store: Store, change: dict[str, Any], words: list[str]
) -> None:
    before = (store.root / "manifests" / "chatty" / "latest.json").read_bytes()
    answer = await edit(client, **{"parameters": {"top_k": 9}, **change})
    assert answer.status_code == 400, answer.text
    for word in words:
        assert word in answer.json()["error"]
    assert (store.root / "manifests" / "chatty" / "latest.json").read_bytes() == before


async def test_edit_of_an_unknown_model_is_404(client: httpx.AsyncClient) -> None:
    assert (await edit(client, model="nobody", parameters={"top_k": 1})).status_code == 404


async def test_pull_stores_a_local_file_and_tells_its_progress(
    client: httpx.AsyncClient, store: Store, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    answer = await client.post("/api/pull", json={"model": "new", "from": str(path)})
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert rows[0] == {"status": "reading the header"}
    size = path.stat().st_size
    assert rows[-2] == {"status": "copying m.gguf", "total": size, "completed": size}
    assert rows[-1] == {"status": "success"}
    (blob,) = store.get(parse_name("new")).blobs
    assert store.blob_path(blob.digest).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"from": "/nowhere/x.gguf"}, "/nowhere/x.gguf"),
        ({"from": "relative.gguf"}, "absolute"),
        ({"from": "/" + "x" * 9000}, "x"),
        ({"from": "/a\0b"}, "absolute"),
        ({}, "registry"),
        ({"model": "../x", "from": "/tmp/x.gguf"}, "name"),
        ({"model": "x:a/b", "from": "/tmp/x.gguf"}, "name"),
    ],
)
async def test_a_bad_pull_is_refused(
    client: httpx.AsyncClient, store: Store, stream: bool, body: dict[str, Any], word: str
) -> None:
    before = store.names()
    answer = await client.post("/api/pull", json={"model": "new", "stream": stream, **body})
    assert answer.status_code == 400, answer.text
    assert word in answer.json()["error"]
    assert store.names() == before


async def test_what_is_no_gguf_is_refused(
    client: httpx.AsyncClient, store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "garbage.gguf"
    path.write_bytes(b"garbage" * 1000)
    answer = await client.post("/api/pull", json={"model": "new", "from": str(path)})
    assert answer.status_code == 400
    assert "garbage.gguf" in answer.json()["error"]
    assert list((store.root / "blobs").iterdir()) == []


async def create(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/api/create", json={"model": "made", "stream": False, **body})


async def test_create_from_a_modelfile(client: httpx.AsyncClient, store: Store) -> None:
    text = "FROM chatty\nPARAMETER temperature 0.3\nSYSTEM Be brief.\nTEMPLATE {{ messages }}\n"
    answer = await create(client, modelfile=text)
    assert (answer.status_code, answer.json()) == (200, {"status": "success"})
    made = store.get(parse_name("made"))
    assert made.modelfile is not None
    assert made.modelfile.parameters.temperature == 0.3
    assert (made.system, made.template) == ("Be brief.", "{{ messages }}")
    shown = (await client.post("/api/show", json={"model": "made"})).json()
    assert shown["modelfile"] == text


async def test_create_from_parts(client: httpx.AsyncClient, store: Store) -> None:
    answer = await create(
        client,
        **{"from": "chatty"},
        parameters={
            **{"temperature": 0.3, "stop": ["a", " b\nc "]},
            **{"num_ctx": 99, "pin": ["attn", "norm"]},
        },
        system="two\nlines",
        messages=[{"role": "user", "content": 'say "x" now'}],
        license="free",
    )
    assert answer.status_code == 200, answer.text
    made = store.get(parse_name("made"))
    assert made.modelfile is not None
    assert made.modelfile.parameters.stop == ("a", " b\nc ")
    assert (made.modelfile.loader.n_ctx, made.modelfile.loader.pin) == (99, ("attn", "norm"))
    assert (made.system, made.messages[0].content) == ("two\nlines", 'say "x" now')


async def test_a_relative_from_starts_at_the_modelfiles_folder(
    client: httpx.AsyncClient, store: Store, tmp_path: Path
) -> None:
    write_tiny(tmp_path / "m.gguf")
    answer = await create(client, modelfile="FROM ./m.gguf\n", base_dir=str(tmp_path))
    assert answer.status_code == 200, answer.text
    assert parse_name("made") in store.names()


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "from"),
        ({"modelfile": "FROM chatty\nPARAMETR x 1\n"}, "line 2"),
        ({"modelfile": "FROM chatty\nPARAMETER weight_residency eagre\n"}, "eagre"),
        ({"modelfile": "FROM chatty\nPARAMETER pin attn,atn\n"}, "line 2: PARAMETER pin"),
        ({"modelfile": "FROM chatty\nTEMPLATE {% if %}\n"}, "template, line 1"),
        ({"modelfile": "FROM ./nowhere.gguf\n"}, "nowhere.gguf"),
        ({"modelfile": "FROM a b c\n"}, "a b c"),
        ({"from": "chatty\nSYSTEM x"}, "from"),
        ({"from": "chatty", "system": 'x"""'}, "system"),
        ({"from": "chatty", "parameters": {"a\nb": 1}}, "parameters"),
        ({"from": "chatty", "parameters": {"temperature": {}}}, "temperature"),
        ({"modelfile": "FROM chatty\n", "model": "../x"}, "name"),
        ({"modelfile": "FROM chatty\n", "base_dir": "x"}, "base_dir"),
    ],
)
async def test_a_bad_create_is_refused(
    client: httpx.AsyncClient, store: Store, body: dict[str, Any], word: str
) -> None:
    before = store.names()
    answer = await create(client, **body)
    assert answer.status_code == 400, answer.text
    assert word in answer.json()["error"]
    assert store.names() == before


async def test_create_from_an_unknown_model_is_404(client: httpx.AsyncClient) -> None:
    assert (await create(client, modelfile="FROM nobody\n")).status_code == 404


async def test_cancelled_work_ends_at_its_next_report() -> None:
    ended: list[str] = []
    go = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(report: Any) -> None:
        report(1)
        try:
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result(5)
            report(2)
        except WorkCancelled:
            ended.append("cleaned up")
            raise

    executor = ThreadPoolExecutor(1)
    background: Background[int] = Background(executor, work)
    assert await anext(background.progress()) == 1
    closing = asyncio.create_task(background.aclose())
    await asyncio.sleep(0.01)
    assert not closing.done(), "it waits for the thread"
    go.set()
    await asyncio.wait_for(closing, 5)
    assert ended == ["cleaned up"]
    executor.shutdown()
