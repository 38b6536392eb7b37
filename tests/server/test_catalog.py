"""From a stored manifest and the environment to what is loaded and how it samples."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import get_args

import pytest

from manifests.errors import InvalidName, ModelMissing
from manifests.manifest import LoaderOptions, ModelfileLayer, Parameters, TensorClassName
from manifests.names import parse_name
from manifests.store import Store
from residency.classes import TensorClass
from server.catalog import Catalog, Model
from server.protocol import Load, Sampling
from server.settings import Settings

CHATTY = parse_name("chatty")


async def test_defaults_of_a_plain_model(store: Store, settings: Settings) -> None:
    model = await Catalog(store, settings).model("chatty")
    spec = model.spec()
    blob = "sha256-" + "0" * 64
    assert spec.name == "chatty:latest"
    assert spec.identity == blob
    assert spec.keep_alive == 300
    assert spec.load == Load(
        model="chatty:latest",
        paths=[str(store.blob_path(blob))],
        residency="eager",
        pin=[],
        repin_requests=0,
        n_ctx=4096,
        n_batch=2048,
        n_ubatch=512,
        prefill_slice=128,
        n_threads=0,
        n_gpu_layers=-1,
        n_slots=1,
        type_k="f16",
        type_v="f16",
        flash_attn="auto",
        pooling="model",
    )
    assert model.sampling == Sampling()
    assert (model.stop, model.max_tokens) == ((), -1)


def test_the_stores_names_of_tensor_classes_are_residencys() -> None:
    assert get_args(TensorClassName) == tuple(TensorClass)


async def test_a_short_trained_model_gets_its_own_context(store: Store, settings: Settings) -> None:
    details = store.get(CHATTY).details.model_copy(update={"context_length": 512})
    store.edit(CHATTY, lambda stored: stored.model_copy(update={"details": details}))
    assert (await Catalog(store, settings).model("chatty")).spec().load.n_ctx == 512


async def test_each_rung_shadows_the_next(store: Store, settings: Settings) -> None:
    catalog = Catalog(
        store,
        dataclasses.replace(
            settings, weight_residency="lazy", context_length=100, num_parallel=2, keep_alive=7
        ),
    )

    async def residency() -> tuple[object, str]:
        effective = (await catalog.model("chatty")).loader["weight_residency"]
        return effective.value, effective.source

    model = await catalog.model("chatty")
    assert (model.spec().load.n_ctx, model.spec().load.n_slots) == (100, 2)
    assert model.spec().keep_alive == 7
    assert await residency() == ("lazy", "environment")
    loader = LoaderOptions(weight_residency="eager")
    store.edit(CHATTY, lambda stored: stored.model_copy(update={"loader": loader}))
    assert await residency() == ("eager", "manifest")
    layer = ModelfileLayer(loader=LoaderOptions(weight_residency="pinned"))
    store.edit(CHATTY, lambda stored: stored.model_copy(update={"modelfile": layer}))
    assert await residency() == ("pinned", "modelfile")


@pytest.mark.parametrize("rung", ["environment", "manifest"])
async def test_an_unknown_mode_is_logged_once_and_the_default_holds(
    store: Store, settings: Settings, caplog: pytest.LogCaptureFixture, rung: str
) -> None:
    if rung == "manifest":
        path = store.root / "manifests" / "chatty" / "latest.json"
        stored = json.loads(path.read_text())
        path.write_text(json.dumps({**stored, "loader": {"weight_residency": "eagre"}}))
    else:
        settings, _ = Settings.from_environ({"CORRAL_WEIGHT_RESIDENCY": "eagre"})
    catalog = Catalog(store, settings)
    with caplog.at_level(logging.WARNING, "corral.catalog"):
        for _ in range(3):
            assert (await catalog.model("chatty")).spec().load.residency == "eager"
    (record,) = caplog.records
    assert "eagre" in record.message
    assert "lazy_then_pin_resident" in record.message


async def test_the_modelfiles_parameters_shadow_the_manifests(
    store: Store, settings: Settings
) -> None:
    update = {
        "parameters": Parameters(temperature=0.1, top_k=5, seed=-1),
        "modelfile": ModelfileLayer(parameters=Parameters(temperature=0.9, num_predict=3)),
    }
    store.edit(CHATTY, lambda stored: stored.model_copy(update=update))
    model = await Catalog(store, settings).model("chatty:latest")
    assert model.sampling == Sampling(temperature=0.9, top_k=5, seed=None)
    assert model.max_tokens == 3


async def test_the_digest_changes_with_an_edit_and_the_identity_does_not(
    store: Store, settings: Settings
) -> None:
    catalog = Catalog(store, settings)

    async def now() -> Model:
        return await catalog.model("chatty")

    before = await now()
    store.edit(CHATTY, lambda stored: stored.model_copy(update={"system": "x"}))
    after = await now()
    assert before.digest != after.digest
    assert before.spec().identity == after.spec().identity


async def test_names_are_checked(store: Store, settings: Settings) -> None:
    catalog = Catalog(store, settings)
    with pytest.raises(ModelMissing):
        await catalog.model("nobody")
    for name in ("..", "a/../b", "x:a/b", "", "x:"):
        with pytest.raises(InvalidName):
            await catalog.model(name)
