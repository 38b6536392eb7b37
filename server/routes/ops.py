"""Health, readiness and metrics, for whoever operates the daemon."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from server.framing import json_response
from server.services import Services, services_of

router = APIRouter()
# Behind the API keys where there are any: the series name the models and their traffic.
metrics_router = APIRouter()

# The version of the text format that prometheus_client writes.
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.api_route("/", methods=["GET", "HEAD"])
async def root() -> Response:
    return PlainTextResponse("corral is running")


@router.get("/health")
async def health() -> Response:
    return json_response({"status": "ok"})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """503 while nothing can serve: no model is stored, or the daemon is stopping."""
    why = await _why_not(services_of(request))
    if why is None:
        return json_response({"status": "ok"})
    return json_response({"status": "unavailable", "reason": why}, 503)


async def _why_not(services: Services) -> str | None:
    if services.stopping:
        return "the daemon is shutting down"
    if not await asyncio.to_thread(services.store.names):
        return "no model is stored; add one with `corral pull` or `corral create`"
    return None


@metrics_router.get("/metrics")
async def metrics(request: Request) -> Response:
    """In a thread: sampling reads /proc, and a token must not wait for it."""
    services = services_of(request)
    loop = asyncio.get_running_loop()
    text = await loop.run_in_executor(services.scrapes, services.measures.render)
    return Response(text, media_type=METRICS_TYPE)
