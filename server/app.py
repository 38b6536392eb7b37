"""The HTTP application: routes, keys, CORS and the answers to errors, over given services."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request

from server import failures
from server.errors import Unauthorized
from server.routes import (
    embeddings,
    ollama_generate,
    ollama_models,
    ollama_store,
    openai,
    ops,
    residency,
)
from server.services import Services, services_of


def build_app(services: Services) -> FastAPI:
    """The application. Its lifespan ends the template processes; the core is its caller's."""
    app = FastAPI(title="corral", openapi_url=None, lifespan=_lifespan, redirect_slashes=False)
    app.state.services = services
    failures.install(app)
    if services.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=services.settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    # Probes carry no key.
    app.include_router(ops.router)
    for routes in (
        openai,
        embeddings,
        ollama_generate,
        ollama_models,
        ollama_store,
        residency,
    ):
        app.include_router(routes.router, dependencies=[Depends(require_key)])
    app.include_router(ops.metrics_router, dependencies=[Depends(require_key)])
    return app


async def require_key(request: Request) -> None:
    """Raises Unauthorized unless the request carries one of the keys, where any are set."""
    keys = services_of(request).settings.api_keys
    if not keys:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = given.strip().encode("latin-1")
    # No early exit: the time tells nothing of which key, or how much of it, was right.
    matches = [secrets.compare_digest(token, key.encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise Unauthorized("a valid API key is needed: Authorization: Bearer <key>")


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    try:
        yield
    finally:
        await services.templates.close()
        services.long_work.shutdown(wait=False, cancel_futures=True)
