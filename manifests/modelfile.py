"""Parses a Modelfile: Ollama's format, with every fault at its line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

from manifests.errors import InvalidValue, ModelfileError
from manifests.manifest import LoaderOptions, Message, Parameters
from manifests.options import ALIASES, check_value, from_text, nearest

MAX_MODELFILE_BYTES = 4 << 20

_INSTRUCTIONS = ("FROM", "PARAMETER", "SYSTEM", "TEMPLATE", "MESSAGE", "LICENSE", "ADAPTER")
_ROLES = ("system", "user", "assistant")
_FENCE = '"""'
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True)
class Modelfile:
    from_: str
    """A path or the name of a stored model."""
    loader: LoaderOptions
    parameters: Parameters
    system: str | None
    template: str | None
    messages: tuple[Message, ...]
    licenses: tuple[str, ...]
    text: str
    """As it was given."""


def parse_modelfile(text: str) -> Modelfile:
    """The Modelfile in text. Raises ModelfileError.

    Where SYSTEM, TEMPLATE or a PARAMETER stands twice the last one counts; each `stop` and
    `pin` adds one, each MESSAGE and LICENSE too.
    """
    if len(text) > MAX_MODELFILE_BYTES:
        raise ModelfileError(1, f"{len(text):,} characters, at most {MAX_MODELFILE_BYTES:,}")
    for fault in _NO_TEXT.finditer(text):
        line = text.count("\n", 0, fault.start()) + 1
        raise ModelfileError(line, f"has the character {fault[0]!r}, which is no text")
    parsed = _Parsed()
    lines = _Lines(text)
    while (instruction := lines.next_instruction()) is not None:
        _apply(parsed, instruction)
    if parsed.from_ is None:
        raise ModelfileError(lines.count, "no FROM: a Modelfile names the model it builds on")
    return Modelfile(
        from_=parsed.from_,
        loader=LoaderOptions.model_validate(parsed.loader),
        parameters=Parameters.model_validate(parsed.parameters),
        system=parsed.system,
        template=parsed.template,
        messages=tuple(parsed.messages),
        licenses=tuple(parsed.licenses),
        text=text,
    )


class _Instruction(NamedTuple):
    line: int
    keyword: str
    """In capitals."""
    words: str
    """What stands before the value: a parameter's name, a message's role."""
    value: str


class _Lines:
    """The text as instructions, counting lines from 1."""

    def __init__(self, text: str) -> None:
        self._lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
        self._next = 0
        self.count = len(self._lines)

    def next_instruction(self) -> _Instruction | None:
        while self._next < self.count:
            self._next += 1
            line = self._lines[self._next - 1].lstrip()
            if line and not line.startswith("#"):
                return self._instruction(line)
        return None

    def _instruction(self, line: str) -> _Instruction:
        number = self._next
        keyword, rest = _first_word(line)
        keyword = keyword.upper()
        words = ""
        if keyword not in _INSTRUCTIONS:
            raise ModelfileError(number, _unknown("instruction", keyword, _INSTRUCTIONS))
        if keyword in ("PARAMETER", "MESSAGE"):
            words, rest = _first_word(rest)
        value = self._value(rest)
        if not words and keyword in ("PARAMETER", "MESSAGE"):
            raise ModelfileError(number, f"{keyword} needs two words behind it")
        if not value and keyword != "SYSTEM":
            raise ModelfileError(number, f"{keyword} {words}".strip() + " has no value")
        return _Instruction(number, keyword, words, value)

    def _value(self, rest: str) -> str:
        if rest.startswith(_FENCE):
            return self._fenced(rest.removeprefix(_FENCE))
        rest = rest.rstrip()
        if rest.startswith('"'):
            if len(rest) < 2 or not rest.endswith('"'):
                raise ModelfileError(self._next, 'the quote is not closed; use """ over lines')
            return rest[1:-1]
        return rest

    def _fenced(self, rest: str) -> str:
        opened = self._next
        pieces = []
        while _FENCE not in rest:
            pieces.append(rest)
            if self._next == self.count:
                raise ModelfileError(opened, 'the """ is not closed')
            rest = self._lines[self._next]
            self._next += 1
        last, _, behind = rest.partition(_FENCE)
        if behind.strip():
            raise ModelfileError(self._next, f'text behind the closing """: {behind.strip()!r:.80}')
        return "\n".join([*pieces, last])


@dataclass
class _Parsed:
    from_: str | None = None
    loader: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    system: str | None = None
    template: str | None = None
    messages: list[Message] = field(default_factory=list)
    licenses: list[str] = field(default_factory=list)


def _apply(parsed: _Parsed, instruction: _Instruction) -> None:
    match instruction.keyword:
        case "FROM" if parsed.from_ is not None:
            raise ModelfileError(instruction.line, f"a second FROM; the first is {parsed.from_}")
        case "FROM":
            parsed.from_ = instruction.value
        case "PARAMETER":
            _apply_parameter(parsed, instruction)
        case "SYSTEM":
            parsed.system = instruction.value
        case "TEMPLATE":
            parsed.template = instruction.value
        case "MESSAGE":
            parsed.messages.append(_message(instruction))
        case "LICENSE":
            parsed.licenses.append(instruction.value)
        case "ADAPTER":
            raise ModelfileError(
                instruction.line, "ADAPTER is not supported; merge the adapter into the model"
            )


def _apply_parameter(parsed: _Parsed, instruction: _Instruction) -> None:
    written = instruction.words.lower()
    option = ALIASES.get(written, written)
    value: object = from_text(option, instruction.value)
    if option == "stop":
        value = (*parsed.parameters.get("stop", ()), instruction.value)
    elif option == "pin":
        value = (*parsed.loader.get("pin", ()), instruction.value)
    try:
        if option in LoaderOptions.model_fields:
            check_value(LoaderOptions, option, value)
            parsed.loader[option] = value
        elif option in Parameters.model_fields:
            check_value(Parameters, option, value)
            parsed.parameters[option] = value
        else:
            known = (*LoaderOptions.model_fields, *Parameters.model_fields)
            raise ModelfileError(instruction.line, _unknown("parameter", written, known))
    except InvalidValue as error:
        raise ModelfileError(instruction.line, f"PARAMETER {written} {error.why}") from None


def _message(instruction: _Instruction) -> Message:
    role = instruction.words.lower()
    if role not in _ROLES:
        raise ModelfileError(instruction.line, _unknown("role", role, _ROLES))
    return Message(
        role=cast(Literal["system", "user", "assistant"], role), content=instruction.value
    )


def _first_word(line: str) -> tuple[str, str]:
    words = line.split(maxsplit=1)
    return words[0] if words else "", words[1] if len(words) > 1 else ""


def _unknown(what: str, word: str, known: tuple[str, ...]) -> str:
    near = nearest(word, known)
    hint = f", did you mean {near}?" if near else ";"
    return f"unknown {what} {word[:80]!r}{hint} known: {', '.join(known)}"
