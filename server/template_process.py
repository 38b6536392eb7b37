"""Child process that renders one chat template; templates come out of models and are untrusted.

Run by its path, in isolated mode: it imports nothing of corral and gets no environment.
Frames on stdin and stdout: 4-byte big-endian length, then JSON. The first frame in is the
template's text; every later one is a context to render. Each is answered by one frame:
{"text"}, {"raised"} (the template's own raise_exception), {"failed"} or {"syntax", "line"}.
"""

from __future__ import annotations

import datetime
import json
import os
import resource
import struct
import sys
from typing import Any, BinaryIO, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Jinja and Python map about 60 MiB; the rest is the template's own.
ADDRESS_SPACE_BYTES = 512 << 20
# Models' own templates take milliseconds, 100 at the first render of a long conversation.
CPU_SECONDS_PER_RENDER = 2
# More than the million tokens, at four to five characters each, that any context holds.
MAX_OUTPUT_CHARS = 8 << 20
HEADER = struct.Struct(">I")


class Raised(Exception):
    """The template called raise_exception."""


class _Generation(Extension):
    """{% generation %} marks the assistant's words for training; it renders its body."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _raise(message: object) -> NoReturn:
    raise Raised(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def environment() -> ImmutableSandboxedEnvironment:
    """What Hugging Face's templates are written for, in Jinja's sandbox."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def compile_template(text: str) -> tuple[Template | None, dict[str, Any]]:
    """The template, or None and the answer that says why not."""
    try:
        return environment().from_string(text), {"text": ""}
    except TemplateSyntaxError as error:
        return None, {"syntax": error.message or "syntax error", "line": error.lineno}
    except (MemoryError, RecursionError, SyntaxError, ValueError) as error:
        return None, {"syntax": f"{type(error).__name__} while reading it", "line": 1}


def render(template: Template, context: dict[str, Any]) -> dict[str, Any]:
    """The answer to one context."""
    try:
        return {"text": _bounded(template, context)}
    except Raised as error:
        return {"raised": str(error)[:2000]}
    except TemplateError as error:
        return {"failed": str(error)[:2000]}
    except Exception as error:  # noqa: BLE001 - the top of a worker, and the code is a stranger's
        return {"failed": f"{type(error).__name__}: {str(error)[:2000]}"}


def _bounded(template: Template, context: dict[str, Any]) -> str:
    parts: list[str] = []
    size = 0
    for part in template.generate(context):
        size += len(part)
        if size > MAX_OUTPUT_CHARS:
            raise ValueError(f"more than {MAX_OUTPUT_CHARS} characters of output")
        parts.append(part)
    return "".join(parts)


def _read(stream: BinaryIO) -> Any:
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        sys.exit(0)
    return json.loads(stream.read(HEADER.unpack(header)[0]))


def _write(stream: BinaryIO, answer: dict[str, Any]) -> None:
    # A lone surrogate that a template made has no UTF-8; the reader gets a question mark.
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
    stream.write(HEADER.pack(len(body)) + body)
    stream.flush()


def _allow_cpu() -> None:
    """Let the coming render use its CPU seconds; beyond them SIGXCPU ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + CPU_SECONDS_PER_RENDER
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = seconds if hard == resource.RLIM_INFINITY else min(seconds, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def main() -> None:
    requests, answers = os.fdopen(0, "rb"), os.fdopen(1, "wb")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _write(answers, {"text": "ready"})
    _allow_cpu()
    template, answer = compile_template(_read(requests))
    _write(answers, answer)
    while template is not None:
        context = _read(requests)
        _allow_cpu()
        _write(answers, render(template, context))


if __name__ == "__main__":
    main()
