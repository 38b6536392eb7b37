"""The ledger of what is in RAM, per loaded model, and of one its map."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from manifests.names import parse_name
from residency.class_map import Cell
from server.calls import LoadedModel
from server.errors import ModelNotFound, ServingError
from server.framing import json_response
from server.services import Services, services_of

router = APIRouter(prefix="/api/residency")


@router.get("")
async def all_models(request: Request) -> Response:
    """A model that goes away meanwhile, or cannot be sampled, is told of by its error."""
    services = services_of(request)
    rows = []
    for loaded in services.core.loaded():
        try:
            rows.append(await _row(services, loaded))
        except ServingError as error:
            rows.append({"model": loaded.spec.name, "error": error.message})
    return json_response({"models": rows})


@router.get("/{name:path}")
async def one_model(request: Request, name: str) -> Response:
    """404 if it is not stored, or not loaded: then it has no pages to tell of."""
    services, wanted = services_of(request), str(parse_name(name))
    for loaded in services.core.loaded():
        if loaded.spec.name == wanted:
            cells = await asyncio.to_thread(services.measures.class_map, wanted)
            row = await _row(services, loaded)
            return json_response({**row, "map": [_cell(cell) for cell in cells]})
    await services.catalog.model(wanted)
    raise ModelNotFound(f"{wanted} is not loaded: a request, or `corral run`, loads it")


def _cell(cell: Cell) -> dict[str, Any]:
    counts = dataclasses.asdict(cell)
    del counts["place"]
    return {"layer": cell.place.layer, "class": cell.place.kind, **counts}


async def _row(services: Services, loaded: LoadedModel) -> dict[str, Any]:
    """The mode in force: an edit that applies at the next load is not in it."""
    name = loaded.spec.name
    ledger = await asyncio.to_thread(services.measures.ledger, name)
    mode = loaded.spec.load.residency
    return {"model": name, "weight_residency": mode, **dataclasses.asdict(ledger)}
