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

from manifests.templates import refuse_go_template
from server.errors import BadRequest, ServingError
from server.template_process import ADDRESS_SPACE_BYTES, CPU_SECONDS_PER_RENDER, HEADER

# Wall clock, while llama.cpp may hold every CPU. A template cannot wait: one that is slow runs
# out of CPU time, so whoever gets here was not given any.
RENDER_SECONDS = 10.0
START_SECONDS = 30.0
MAX_TEMPLATE_CHARS = 1 << 20
# Four UTF-8 bytes for each character that the child lets through, and room for escapes.
_MAX_ANSWER_BYTES = 64 << 20
# As many models as are in use at once on most machines; a child rests at about 20 MB. The
# least recently used goes first.
_MAX_CHILDREN = 8
# Bounds what hostile templates hold together: this many times ADDRESS_SPACE_BYTES, 2 GiB.
_MAX_RUNNING = 4
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


class TemplateStarved(ServingError):
    """The template's process got no CPU time, or could not be started."""

    status = 503
    code = "chat_template_starved"
    retry_after = 5


class _SyntaxFault(Exception):
    """The text is no Jinja; says where and why."""


class _Child:
    """The process of one template. Any render that does not end well ends the process."""

    def __init__(self, template: str) -> None:
        self.template = template
        self.lock = asyncio.Lock()
        self.users = 0
        """Renders that have it or wait for it."""
        self._process: Process | None = None

    async def render(self, context: dict[str, Any]) -> dict[str, Any]:
        """The child's answer. Raises TimeoutError, EOFError (it was killed), _SyntaxFault,
        TemplateStarved."""
        async with self._killed_unless_done():
            process = self._process or await self._started()
            async with asyncio.timeout(RENDER_SECONDS):
                return await _ask(process, context)

    async def check(self) -> None:
        """Raises as render does, before anything is rendered."""
        async with self._killed_unless_done():
            await self._started()

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        self.kill()
        process, self._process = self._process, None
        if process is not None:
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
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={}
            )
            async with asyncio.timeout(START_SECONDS):
                await _read(process)
        except (OSError, EOFError) as error:  # OSError: also TimeoutError
            raise TemplateStarved(
                f"the process that renders chat templates did not start: {error or 'timed out'}"
            ) from error
        async with asyncio.timeout(RENDER_SECONDS):
            answer = await _ask(process, self.template)
        if "syntax" in answer:
            raise _SyntaxFault(f"line {answer['line']}: {answer['syntax']}")
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


class Templates:
    """Renders templates in children that are kept for the next request."""

    def __init__(self) -> None:
        self._children: OrderedDict[str, _Child] = OrderedDict()
        self._running = asyncio.Semaphore(_MAX_RUNNING)

    async def render(self, model: str, template: str, context: ChatContext) -> str:
        """The prompt. Raises TemplateRefused, TemplateStarved."""
        _bound(template, "the chat template")
        async with self._child(template) as child:
            answer = await _explained(
                child.render(asdict(context)), f"the chat template of {model}"
            )
        if "text" in answer:
            return str(answer["text"])
        if "raised" in answer:
            raise TemplateRefused(
                f"the chat template of {model} refused the messages: {answer['raised']}"
            )
        raise TemplateRefused(f"the chat template of {model} failed: {answer.get('failed')}")

    async def check(self, template: str) -> None:
        """Raises TemplateRefused with the line of a syntax error, TemplateStarved, and
        InvalidValue for a template in Go's language."""
        _bound(template, "the template")
        refuse_go_template(template)
        child = _Child(template)
        try:
            async with self._running:
                await _explained(child.check(), "the template")
        finally:
            await child.close()

    async def close(self) -> None:
        await self._end(list(self._children.values()))

    @contextlib.asynccontextmanager
    async def _child(self, template: str) -> AsyncIterator[_Child]:
        """The template's child, alone. It is not taken out of the table while somebody waits."""
        child = self._children.setdefault(template, _Child(template))
        self._children.move_to_end(template)
        child.users += 1
        try:
            async with child.lock, self._running:
                yield child
        finally:
            child.users -= 1
            unused = [other for other in self._children.values() if not other.users]
            await self._end(unused[: max(0, len(self._children) - _MAX_CHILDREN)])

    async def _end(self, children: Sequence[_Child]) -> None:
        """All are out of the table and killed before anything is waited for."""
        for child in children:
            del self._children[child.template]
            child.kill()
        for child in children:
            await child.close()


async def _explained(asking: Coroutine[Any, Any, T], what: str) -> T:
    try:
        return await asking
    except TimeoutError as error:
        raise TemplateStarved(
            f"{what} got too little CPU time to be rendered in {RENDER_SECONDS:g} s; try again"
        ) from error
    except _SyntaxFault as error:
        raise TemplateRefused(f"{what}, {error}", param="template") from error
    except EOFError as error:
        raise TemplateRefused(
            f"{what} used more than {CPU_SECONDS_PER_RENDER} s of CPU time or"
            f" {ADDRESS_SPACE_BYTES >> 20} MiB of memory and was stopped;"
            " set another with /api/edit"
        ) from error


def _bound(template: str, what: str) -> None:
    if len(template) > MAX_TEMPLATE_CHARS:
        raise TemplateRefused(
            f"{what} has {len(template)} characters, at most {MAX_TEMPLATE_CHARS} are allowed",
            param="template",
        )
