"""The OpenAI routes: models, chat completions, completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.answers import Answer, Events, answered, opened
from server.bodies import read_body
from server.calls import Call, Ended, Text
from server.catalog import Model
from server.errors import BadRequest, ServingError
from server.failures import openai_error
from server.framing import SSE, SSE_DONE, SSE_PING, json_response, sse
from server.prompts import build_call, chat_prompt, new_id
from server.protocol import TokenLogprobs
from server.routes.openai_logprobs import (
    CompletionShape,
    Logprobs,
    chat_logprobs,
)
from server.routes.openai_schema import MAX_CALLS, ChatRequest, CompletionRequest
from server.routes.openai_shapes import (
    Choice,
    Completion,
    Delta,
    MessageBody,
    ModelBody,
    ModelList,
    timings,
    usage,
)
from server.sampling import nth, resolve
from server.services import Services, services_of
from server.streams import LiveStream, while_connected
from server.templates import ChatMessage

router = APIRouter(prefix="/v1")

Asked = ChatRequest | CompletionRequest


@dataclass(frozen=True)
class Job:
    """One request's calls, `n` in a row for each of its prompts."""

    id: str
    model: str
    created: int
    chat: bool
    calls: list[Call]
    prompts: int
    include_usage: bool

    def body(self, choices: list[Choice], chunk: bool = False) -> Completion:
        kind = "text_completion"
        if self.chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        return Completion(self.id, kind, self.created, self.model, choices)


@router.get("/models")
async def list_models(request: Request) -> Response:
    models = await services_of(request).catalog.models()
    return json_response(ModelList([ModelBody(m.name, int(m.modified_at)) for m in models]))


@router.get("/models/{name:path}")
async def show_model(request: Request, name: str) -> Response:
    model = await services_of(request).catalog.model(name)
    return json_response(ModelBody(model.name, int(model.modified_at)))


@router.post("/chat/completions")
async def chat_completions(request: Request) -> Response:
    asked = await read_body(request, ChatRequest)
    services = services_of(request)
    model = await services.catalog.model(asked.model)
    messages = [
        ChatMessage("system" if m.role == "developer" else m.role, m.content)
        for m in asked.messages
    ]
    prompt = await chat_prompt(services.templates, model, messages)
    job = _job(model, asked, [prompt], "/v1/chat/completions")
    return await _run(request, services, asked, job)


@router.post("/completions")
async def completions(request: Request) -> Response:
    asked = await read_body(request, CompletionRequest)
    services = services_of(request)
    model = await services.catalog.model(asked.model)
    job = _job(model, asked, asked.prompt, "/v1/completions")
    return await _run(request, services, asked, job)


def _job(model: Model, asked: Asked, prompts: list[str | list[int]], endpoint: str) -> Job:
    if len(prompts) * asked.n > MAX_CALLS:
        raise BadRequest(
            f"{len(prompts)} prompts times n={asked.n} are more than {MAX_CALLS} answers", param="n"
        )
    sampling = resolve(model.sampling, asked)
    chat = isinstance(asked, ChatRequest)
    job_id = new_id("chatcmpl" if chat else "cmpl")
    calls = [
        build_call(
            model,
            id=f"{job_id}-{p * asked.n + i}" if len(prompts) * asked.n > 1 else job_id,
            endpoint=endpoint,
            prompt=prompt,
            sampling=nth(sampling, i),
            max_tokens=asked.limit(),
            stop=asked.stop,
            ignore_eos=asked.ignore_eos,
            logprobs=asked.n_logprobs(),
        )
        for p, prompt in enumerate(prompts)
        for i in range(asked.n)
    ]
    include = asked.stream_options is not None and asked.stream_options.include_usage
    return Job(job_id, model.name, int(time.time()), chat, calls, len(prompts), include)


async def _run(request: Request, services: Services, asked: Asked, job: Job) -> Response:
    if asked.stream:
        opening = await while_connected(request, opened(services.core, job.calls))
        return LiveStream(_frames(job, opening.events), opening.events, SSE, SSE_PING)
    answers = await while_connected(request, answered(services.core, job.calls))
    return json_response(_whole(job, answers))


def _whole(job: Job, answers: list[Answer]) -> Completion:
    choices = [
        Choice(
            index,
            answer.ended.reason,
            message=MessageBody("assistant", answer.text) if job.chat else None,
            text=None if job.chat else answer.text,
            logprobs=_Likelihoods(job).add(index, answer.logprobs),
        )
        for index, answer in enumerate(answers)
    ]
    body = job.body(choices)
    ended = [answer.ended for answer in answers]
    body.usage = usage(ended, job.prompts)
    body.timings = timings(ended[0])
    return body


async def _frames(job: Job, events: Events) -> AsyncGenerator[bytes]:
    """The stream's events; an error is the last of them."""
    ended: list[Ended] = []
    likelihoods = _Likelihoods(job)
    try:
        if job.chat:
            for index in range(len(job.calls)):
                first = Choice(index, None, delta=Delta(role="assistant", content=""))
                yield sse(job.body([first], chunk=True))
        async for index, event in events:
            if isinstance(event, Text):
                logprobs = likelihoods.add(index, event.logprobs)
                yield sse(_text_chunk(job, index, event.text, logprobs))
            elif isinstance(event, Ended):
                ended.append(event)
                yield sse(_last_chunk(job, index, event))
    except ServingError as error:
        yield sse(openai_error(error))
        return
    if job.include_usage:
        last = job.body([], chunk=True)
        last.usage, last.timings = usage(ended, job.prompts), timings(ended[0])
        yield sse(last)
    yield SSE_DONE


class _Likelihoods:
    """The logprobs of a job's answers, in the shape of its route."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._shapes: dict[int, CompletionShape] = {}

    def add(self, index: int, tokens: Sequence[TokenLogprobs]) -> Logprobs | None:
        """Those of the next piece of an answer; None where nobody asked."""
        if self._job.calls[index].logprobs is None:
            return None
        if self._job.chat:
            return chat_logprobs(tokens)
        return self._shapes.setdefault(index, CompletionShape()).add(tokens)


def _text_chunk(job: Job, index: int, text: str, logprobs: Logprobs | None) -> Completion:
    if job.chat:
        choice = Choice(index, None, delta=Delta(content=text), logprobs=logprobs)
    else:
        choice = Choice(index, None, text=text, logprobs=logprobs)
    return job.body([choice], chunk=True)


def _last_chunk(job: Job, index: int, ended: Ended) -> Completion:
    choice = Choice(index, ended.reason, delta=Delta()) if job.chat else None
    body = job.body([choice or Choice(index, ended.reason, text="")], chunk=True)
    body.timings = timings(ended)
    return body
