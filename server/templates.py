"""Renders chat templates, each in its own bounded child process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from server.errors import BadRequest
from server.template_process import HEADER

RENDER_SECONDS = 2.0
# Starting Python on a machine whose every CPU computes; the template has no part in it.
START_SECONDS = 30.0
MAX_TEMPLATE_CHARS = 1 << 20
# Four UTF-8 bytes for each character that the child lets through, and room for escapes.
_MAX_ANSWER_BYTES = 64 << 20
# A child rests at about 20 MB; the least recently used goes first.
_MAX_CHILDREN = 8
_CHILD = Path(__file__).with_name("template_process.py")

T = TypeVar("T")


@dataclass(frozen=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True)
class ChatContext:
    """What a template sees."""

    messages: Sequence[ChatMessage]
    bos_token: str = ""
    eos_token: str = ""
    add_generation_prompt: bool = True
    tools: None = None


class TemplateRefused(BadRequest):
    """The template cannot be read, raised, failed or took too much."""

    code = "chat_template_failed"


class _SyntaxFault(Exception):
    """The text is no Jinja; says where and why."""


class _Child:
    """The process of one template. Any render that does not end well ends the process."""

    def __init__(self, template: str) -> None:
        self.template = template
        self.lock = asyncio.Lock()
        self._process: Process | None = None

    async def render(self, context: dict[str, Any]) -> dict[str, Any]:
        """The child's answer. Raises TimeoutError, EOFError (it was killed), _SyntaxFault."""
        async with self.lock, self._killed_unless_done():
            process = self._process or await self._started()
            async with asyncio.timeout(RENDER_SECONDS):
                return await _ask(process, context)

    async def check(self) -> None:
        """Raises as render does, before anything is rendered."""
        async with self.lock, self._killed_unless_done():
            if self._process is None:
                await self._started()

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()

    @contextlib.asynccontextmanager
    async def _killed_unless_done(self) -> AsyncIterator[None]:
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                await self.close()

    async def _started(self) -> Process:
        command = [sys.executable, "-I", str(_CHILD)]
        self._process = process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={}
        )
        async with asyncio.timeout(START_SECONDS):
            await _read(process)
        async with asyncio.timeout(RENDER_SECONDS):
            answer = await _ask(process, self.template)
        if "syntax" in answer:
            raise _SyntaxFault(_syntax_message(answer, self.template))
        return process


async def _ask(process: Process, value: object) -> dict[str, Any]:
    assert process.stdin is not None
    body = json.dumps(value).encode()
    try:
        process.stdin.write(HEADER.pack(len(body)) + body)
        await process.stdin.drain()
    except ConnectionError as error:
        raise EOFError from error
    return await _read(process)


async def _read(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    (size,) = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
    if size > _MAX_ANSWER_BYTES:
        raise EOFError
    answer = json.loads(await process.stdout.readexactly(size))
    return dict(answer)


def _syntax_message(answer: dict[str, Any], template: str) -> str:
    message = f"line {answer['line']}: {answer['syntax']}"
    if "{{ ." in template or "{{." in template or "{{- ." in template or "{{ if" in template:
        message += "; this looks like a Go template of Ollama's, corral reads Jinja"
    return message


class Templates:
    """Renders templates in children that are kept for the next request."""

    def __init__(self) -> None:
        self._children: OrderedDict[str, _Child] = OrderedDict()

    async def render(self, model: str, template: str, context: ChatContext) -> str:
        """The prompt. Raises TemplateRefused."""
        child = await self._child(template)
        answer = await _explained(child.render(asdict(context)), f"the chat template of {model}")
        if "text" in answer:
            return str(answer["text"])
        if "raised" in answer:
            raise TemplateRefused(
                f"the chat template of {model} refused the messages: {answer['raised']}"
            )
        raise TemplateRefused(f"the chat template of {model} failed: {answer.get('failed')}")

    async def check(self, template: str) -> None:
        """Raises TemplateRefused with the line of a syntax error."""
        _bound(template, "the template")
        child = _Child(template)
        try:
            await _explained(child.check(), "the template")
        finally:
            await child.close()

    async def close(self) -> None:
        children = list(self._children.values())
        self._children.clear()
        for child in children:
            await child.close()

    async def _child(self, template: str) -> _Child:
        _bound(template, "the chat template")
        child = self._children.setdefault(template, _Child(template))
        self._children.move_to_end(template)
        idle = [text for text, other in self._children.items() if not other.lock.locked()]
        for text in idle[: max(0, len(self._children) - _MAX_CHILDREN)]:
            if text != template:
                await self._children.pop(text).close()
        return child


async def _explained(asking: Coroutine[Any, Any, T], what: str) -> T:
    try:
        return await asking
    except TimeoutError as error:
        raise TemplateRefused(
            f"{what} took longer than {RENDER_SECONDS:g} s and was stopped;"
            " set another with /api/edit"
        ) from error
    except _SyntaxFault as error:
        raise TemplateRefused(f"{what}, {error}", param="template") from error
    except EOFError as error:
        raise TemplateRefused(f"{what} used more memory or CPU time than it may") from error


def _bound(template: str, what: str) -> None:
    if len(template) > MAX_TEMPLATE_CHARS:
        raise TemplateRefused(
            f"{what} has {len(template)} characters, at most {MAX_TEMPLATE_CHARS} are allowed",
            param="template",
        )
