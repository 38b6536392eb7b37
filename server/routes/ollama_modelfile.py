"""The Modelfile that a create request means: its text, or what newer clients send in parts."""

from __future__ import annotations

import json

from server.errors import BadRequest
from server.routes.ollama_schema import CreateRequest

_FENCE = '"""'


def modelfile_of(asked: CreateRequest) -> str:
    """Raises BadRequest if neither form is given, or a part cannot be written down."""
    if asked.modelfile is not None:
        return asked.modelfile
    if not asked.from_:
        raise BadRequest("from: give `from`, or a Modelfile in `modelfile`", param="from")
    lines = ["FROM " + _word(asked.from_, "from")]
    for name, value in asked.parameters.items():
        for one in value if isinstance(value, list) else [value]:
            lines.append(f"PARAMETER {_word(name, 'parameters')} {_value(one, name)}")
    if asked.system is not None:
        lines.append("SYSTEM " + _fenced(asked.system, "system"))
    if asked.template:
        lines.append("TEMPLATE " + _fenced(asked.template, "template"))
    for message in asked.messages:
        lines.append(f"MESSAGE {message.role} {_fenced(message.content, 'messages')}")
    licenses = [asked.license] if isinstance(asked.license, str) else asked.license or []
    lines.extend("LICENSE " + _fenced(text, "license") for text in licenses)
    return "\n".join(lines) + "\n"


def _value(value: object, name: str) -> str:
    return _fenced(value, name) if isinstance(value, str) else json.dumps(value)


def _fenced(text: str, param: str) -> str:
    if _FENCE in text or text.endswith('"'):
        raise BadRequest(
            f"{param}: may not hold three quotes in a row or end with one", param=param
        )
    return _FENCE + text + _FENCE


def _word(text: str, param: str) -> str:
    if "\n" in text or "\r" in text or text != text.strip():
        raise BadRequest(f"{param}: {text[:100]!r} is more than one line or padded", param=param)
    return text
