"""The Ollama routes that bring a model into the store: pull and create."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from manifests.blobs import Progress
from manifests.create import create as create_model
from manifests.create import pull_local
from manifests.errors import ManifestError
from manifests.modelfile import parse_modelfile
from manifests.names import parse_name
from residency.modes import AVAILABLE
from server.background import Background
from server.bodies import read_body
from server.errors import BadRequest, ServingError
from server.failures import as_serving_error, ollama_error
from server.framing import NDJSON, json_response, ndjson
from server.routes.ollama_modelfile import modelfile_of
from server.routes.ollama_schema import CreateRequest, PullRequest
from server.services import services_of
from server.streams import LiveStream, while_connected

router = APIRouter(prefix="/api")

REPORT_SECONDS = 0.1


class Status(msgspec.Struct, omit_defaults=True):
    """One line of progress; bytes."""

    status: str
    total: int | None = None
    completed: int | None = None


Report = Callable[[Status], None]


@router.post("/pull")
async def pull(request: Request) -> Response:
    """Stores a copy of a GGUF that lies on the daemon's machine: `from` is its path."""
    asked = await read_body(request, PullRequest)
    name = parse_name(asked.model_name)
    if asked.from_ is None:
        raise BadRequest(
            "from: pulling from a registry is not supported in this version;"
            " give the absolute path of a GGUF file on the daemon's machine",
            param="from",
        )
    path = _absolute(asked.from_, "from")
    store = services_of(request).store

    def work(report: Report) -> None:
        report(Status("reading the header"))
        pull_local(store, name, path, _bytes(report, f"copying {path.name}"))

    return await _run(request, work, asked.stream)


@router.post("/create")
async def create(request: Request) -> Response:
    """From a Modelfile's text or its parts. A relative FROM starts in CORRAL_HOME/imports,
    or in `base_dir`, which the command line sets to the Modelfile's folder."""
    asked = await read_body(request, CreateRequest)
    services = services_of(request)
    name = parse_name(asked.model_name)
    modelfile = await asyncio.to_thread(parse_modelfile, modelfile_of(asked))
    if modelfile.template:
        await services.templates.check(modelfile.template)
    base = services.settings.home / "imports"
    if asked.base_dir is not None:
        base = _absolute(asked.base_dir, "base_dir")

    def work(report: Report) -> None:
        report(Status("reading the Modelfile"))
        progress = _bytes(report, f"copying {modelfile.from_}")
        create_model(services.store, name, modelfile, base, AVAILABLE, progress)

    return await _run(request, work, asked.stream)


def _absolute(text: str, param: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or "\0" in text:
        raise BadRequest(f"{param}: {text[:200]!r} is no absolute path", param=param)
    return path


def _bytes(report: Report, status: str) -> Progress:
    """Progress of the store, told at most every REPORT_SECONDS and at the end."""
    last = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= total or now - last >= REPORT_SECONDS:
            last = now
            report(Status(status, total, done))

    return progress


async def _run(request: Request, work: Callable[[Report], None], stream: bool | None) -> Response:
    """Streams the progress; an error before the first bytes are copied has its own status."""
    background: Background[Status] = Background(services_of(request).long_work, work)
    reports = background.progress()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(contextlib.aclosing(background))
        early = await while_connected(request, _until_copying(reports))
        if stream is False:
            await while_connected(request, _exhaust(reports))
            return json_response(Status("success"))
        stack.pop_all()
    return LiveStream(_frames(early, reports), background, NDJSON)


async def _until_copying(reports: AsyncGenerator[Status]) -> list[Status]:
    early = []
    async for report in reports:
        early.append(report)
        if report.completed is not None:
            break
    return early


async def _exhaust(reports: AsyncGenerator[Status]) -> None:
    async for _ in reports:
        pass


async def _frames(early: list[Status], reports: AsyncGenerator[Status]) -> AsyncGenerator[bytes]:
    for report in early:
        yield ndjson(report)
    try:
        async with contextlib.aclosing(reports):
            async for report in reports:
                yield ndjson(report)
    except (ServingError, ManifestError) as error:
        yield ndjson(ollama_error(as_serving_error(error)))
        return
    yield ndjson(Status("success"))
