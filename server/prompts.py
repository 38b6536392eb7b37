"""From a request's messages and a model's defaults to one call for the core."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence

from server.calls import Call
from server.catalog import Model
from server.errors import BadRequest
from server.protocol import Sampling
from server.templates import ChatContext, ChatMessage, Templates


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"


def conversation(
    messages: Sequence[ChatMessage], system: str | None, prelude: Sequence[ChatMessage]
) -> list[ChatMessage]:
    """The messages with the model's own: its SYSTEM where they have none, its MESSAGEs first."""
    if messages and messages[0].role == "system":
        return [messages[0], *prelude, *messages[1:]]
    if system and not any(message.role == "system" for message in messages):
        return [ChatMessage("system", system), *prelude, *messages]
    return [*prelude, *messages]


async def chat_prompt(
    templates: Templates,
    model: Model,
    messages: Sequence[ChatMessage],
    template: str | None = None,
) -> str:
    """The prompt that the template, the model's if none is given, makes. Raises BadRequest."""
    model.refuse_encoder()
    template = template or model.template
    if template is None:
        raise BadRequest(
            f"{model.name} has no chat template; use /v1/completions,"
            " or set a template with /api/edit",
            param="messages",
        )
    context = ChatContext(
        conversation(messages, model.system, model.messages), model.bos_token, model.eos_token
    )
    return await templates.render(model.name, template, context)


def build_call(
    model: Model,
    *,
    id: str,
    endpoint: str,
    prompt: str | list[int],
    sampling: Sampling,
    max_tokens: int | None,
    stop: tuple[str, ...] | None,
    ignore_eos: bool = False,
    logprobs: int | None = None,
    keep_alive: float | None = None,
) -> Call:
    """A call in which everything the request left open is the model's default."""
    model.refuse_encoder()
    spec = model.spec()
    if keep_alive is not None:
        spec = dataclasses.replace(spec, keep_alive=keep_alive)
    return Call(
        id=id,
        endpoint=endpoint,
        spec=spec,
        prompt=prompt,
        sampling=sampling,
        max_tokens=model.max_tokens if max_tokens is None else max_tokens,
        stop=model.stop if stop is None else stop,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
    )
