"""The Ollama routes that read and edit: tags, show, ps, version, edit, copy, delete."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from manifests.edit import UNSET, apply_edit, shadowed
from manifests.errors import ManifestError, UnknownKey
from manifests.manifest import Manifest
from manifests.names import parse_name
from manifests.options import nearest
from residency.ledger import Ledger
from residency.modes import AVAILABLE
from server.bodies import read_body
from server.calls import LoadedModel
from server.catalog import Model
from server.errors import ServingError
from server.framing import json_response
from server.routes.ollama_listing import Running, RunningList, Tags, running, shown, tag
from server.routes.ollama_schema import CopyRequest, EditRequest, Named
from server.services import Services, services_of
from server.version import VERSION

router = APIRouter(prefix="/api")

Applies = Literal["now", "next_load", "shadowed"]
_LIVE = frozenset({"loader.weight_residency", "loader.pin", "loader.repin_requests"})
"""What a loaded model can take over while it serves."""


@router.get("/version")
async def version() -> Response:
    return json_response({"version": VERSION})


@router.get("/tags")
async def tags(request: Request) -> Response:
    models = await services_of(request).catalog.models()
    return json_response(Tags([tag(model) for model in models]))


@router.post("/show")
async def show(request: Request) -> Response:
    asked = await read_body(request, Named)
    return json_response(shown(await services_of(request).catalog.model(asked.model_name)))


@router.get("/ps")
async def ps(request: Request) -> Response:
    services = services_of(request)
    rows = [await _row(services, loaded) for loaded in services.core.loaded()]
    return json_response(RunningList(rows))


async def _row(services: Services, loaded: LoadedModel) -> Running:
    model: Model | None = None
    ledger: Ledger | None = None
    # Deleted or unloaded meanwhile: the row shows what is still known.
    with contextlib.suppress(ManifestError):
        model = await services.catalog.model(loaded.spec.name)
    with contextlib.suppress(ServingError):
        ledger = await asyncio.to_thread(services.measures.ledger, loaded.spec.name)
    return running(loaded, model, ledger)


@router.post("/edit")
async def edit(request: Request) -> Response:
    asked = await read_body(request, EditRequest)
    _refuse_unknown(asked)
    services = services_of(request)
    name = parse_name(asked.model)
    if asked.template:
        await services.templates.check(asked.template)
    changed: list[str] = []

    def change(manifest: Manifest) -> Manifest:
        after, keys = apply_edit(
            manifest,
            asked.loader,
            asked.parameters,
            system=asked.system if "system" in asked.model_fields_set else UNSET,
            template=asked.template if "template" in asked.model_fields_set else UNSET,
            modes=AVAILABLE,
        )
        changed.extend(keys)
        return after

    manifest = await asyncio.to_thread(services.store.edit, name, change)
    applied = False
    if asked.reload:
        await services.core.unload(str(name))
    elif _LIVE.intersection(changed):
        applied = await _apply_live(services, str(name))
    return json_response(
        {
            "model": str(name),
            "manifest": manifest.model_dump(mode="json", exclude_none=True),
            "applies": {key: _applies(manifest, key, applied) for key in changed},
        }
    )


def _refuse_unknown(asked: EditRequest) -> None:
    known = list(EditRequest.model_fields)
    for key in asked.model_extra or {}:
        raise UnknownKey(key, nearest(key, known), known)


async def _apply_live(services: Services, name: str) -> bool:
    """Whether the loaded model, if it is loaded, now takes over what is stored."""
    async with services.live_edits:
        try:
            spec = (await services.catalog.model(name)).spec()
        except ManifestError:
            # Deleted meanwhile.
            return False
        return services.core.apply(spec)


def _applies(manifest: Manifest, key: str, applied: bool) -> Applies:
    """When the value of a changed key counts; applied: those of _LIVE do already."""
    if shadowed(manifest, key):
        return "shadowed"
    if key.startswith("loader."):
        return "now" if applied and key in _LIVE else "next_load"
    return "now"


@router.post("/copy")
async def copy(request: Request) -> Response:
    asked = await read_body(request, CopyRequest)
    source, target = parse_name(asked.source), parse_name(asked.destination)
    await asyncio.to_thread(services_of(request).store.copy, source, target)
    return Response()


@router.delete("/delete")
async def delete(request: Request) -> Response:
    """The manifest first, so that no request loads it again; then the loaded model."""
    asked = await read_body(request, Named)
    services = services_of(request)
    name = parse_name(asked.model_name)
    await asyncio.to_thread(services.store.delete, name)
    await services.core.unload(str(name))
    return Response()
