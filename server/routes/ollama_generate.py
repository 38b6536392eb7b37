"""The generating Ollama routes: generate and chat, which also load and unload."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable
from typing import Literal

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from manifests.templates import refuse_go_template
from server.answers import Opened, answered, opened
from server.bodies import read_body
from server.calls import Call, Ended, Text
from server.catalog import Model
from server.errors import BadRequest, ServingError
from server.failures import ollama_error
from server.framing import NDJSON, json_response, ndjson
from server.prompts import build_call, chat_prompt, new_id
from server.routes.ollama_schema import ChatRequest, GenerateRequest, Generating
from server.routes.ollama_shapes import (
    ChatBody,
    GenerateBody,
    Stats,
    chat_body,
    generate_body,
    stats,
)
from server.sampling import resolve
from server.services import Services, services_of
from server.streams import LiveStream, while_connected
from server.templates import ChatMessage

router = APIRouter(prefix="/api")

Body = ChatBody | GenerateBody
Shape = Callable[[str, str, Stats | None], Body]
"""Model, text and, for the last body, the figures."""


@router.post("/generate")
async def generate(request: Request) -> Response:
    asked = await read_body(request, GenerateRequest)
    services = services_of(request)
    model = await services.catalog.model(asked.model_name)
    if not asked.prompt:
        return await _load_or_unload(request, services, model, asked, generate_body)
    prompt = await _generate_prompt(services, model, asked)
    return await _run(request, asked, _call(model, asked, prompt, "/api/generate"), generate_body)


@router.post("/chat")
async def chat(request: Request) -> Response:
    asked = await read_body(request, ChatRequest)
    services = services_of(request)
    model = await services.catalog.model(asked.model_name)
    if not asked.messages:
        return await _load_or_unload(request, services, model, asked, chat_body)
    messages = [ChatMessage(m.role, m.content) for m in asked.messages]
    prompt = await chat_prompt(services.templates, model, messages)
    return await _run(request, asked, _call(model, asked, prompt, "/api/chat"), chat_body)


async def _generate_prompt(services: Services, model: Model, asked: GenerateRequest) -> str:
    """The prompt in the model's template; as it is where raw, or where there is no template."""
    template = asked.template or model.template
    if template is None and asked.system:
        raise BadRequest(
            f"{model.name} has no chat template, so a system text has no place: "
            "write it into the prompt, or set a template with /api/edit",
            param="system",
        )
    if asked.raw or template is None:
        return asked.prompt
    refuse_go_template(template)
    messages = [ChatMessage("user", asked.prompt)]
    if asked.system is not None:
        messages.insert(0, ChatMessage("system", asked.system))
    return await chat_prompt(services.templates, model, messages, template)


def _call(model: Model, asked: Generating, prompt: str, endpoint: str) -> Call:
    return build_call(
        model,
        id=new_id("gen"),
        endpoint=endpoint,
        prompt=prompt,
        sampling=resolve(model.sampling, asked.options),
        max_tokens=asked.options.num_predict,
        stop=asked.options.stop,
        keep_alive=asked.keep_alive,
    )


async def _load_or_unload(
    request: Request, services: Services, model: Model, asked: Generating, shape: Shape
) -> Response:
    reason: Literal["load", "unload"] = "load"
    if asked.keep_alive == 0:
        reason = "unload"
        await services.core.unload(model.name)
    else:
        spec = model.spec()
        if asked.keep_alive is not None:
            spec = dataclasses.replace(spec, keep_alive=asked.keep_alive)
        await while_connected(request, services.core.load(spec))
    return json_response(shape(model.name, "", Stats(done_reason=reason)))


async def _run(request: Request, asked: Generating, call: Call, shape: Shape) -> Response:
    core = services_of(request).core
    if asked.stream is not False:
        opening = await while_connected(request, opened(core, [call]))
        frames = _frames(call.spec.name, opening, shape)
        return LiveStream(frames, opening.events, NDJSON)
    (answer,) = await while_connected(request, answered(core, [call]))
    last = stats(answer.begun, answer.ended)
    return json_response(shape(call.spec.name, answer.text, last))


async def _frames(model: str, opening: Opened, shape: Shape) -> AsyncGenerator[bytes]:
    """The stream's lines; an error is the last of them."""
    try:
        async for _, event in opening.events:
            match event:
                case Text():
                    yield ndjson(shape(model, event.text, None))
                case Ended():
                    yield ndjson(shape(model, "", stats(opening.begun, event)))
    except ServingError as error:
        yield ndjson(ollama_error(error))
