"""Reads a GBNF grammar into the rules that llama.cpp's parser would make of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# A character, class member or token: all that matters is that it is not empty.
TERMINAL = -1
# Eight bytes each in llama.cpp, held twice. Repetition multiplies them.
MAX_ELEMENTS = 250_000
# More than MAX_REPETITION_THRESHOLD times is without limit to llama.cpp.
_UNLIMITED = 2001

Sequence = list[int]

_ESCAPE = r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"\[\]-])'
_CHARACTER = re.compile(rf"{_ESCAPE}|[^\\]", re.DOTALL)
# A rule's name counts as its start only before `::=`, so line breaks need no rule of their own.
_TOKEN = re.compile(
    rf"""(?P<space>[ \t\r\n]+|\#[^\r\n]*)
    |(?P<define>[a-zA-Z0-9-]+)[ \t]*::=
    |(?P<name>[a-zA-Z0-9-]+)
    |"(?P<string>(?:{_ESCAPE}|[^"\\])*)"
    |\[\^?(?P<members>(?:{_ESCAPE}|[^\]\\])*)\]
    |(?P<one>\.|!?<(?:\[[0-9]+\]|(?!\[)[^>]*)>)
    |\{{\s*(?P<low>[0-9]+)\s*(?P<comma>,\s*(?P<high>[0-9]*)\s*)?\}}
    |(?P<mark>[()|*+?])""",
    re.VERBOSE,
)
_MARKED: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass
class Rule:
    """A rule, or what a group or a repetition within the named rule becomes."""

    name: str
    alternatives: list[Sequence] = field(default_factory=list)
    # S' of S*, which is `S S' |`.
    repeats: bool = False


@dataclass
class _Open:
    """A rule or group not yet read to its end; the last item begins at `item`."""

    rule: int
    alternatives: list[Sequence] = field(default_factory=lambda: [[]])
    item: int = 0


def read(text: str) -> list[Rule]:
    """Raises ValueError where the text is no GBNF, or more than llama.cpp should hold."""
    reader = _Reader()
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or not reader.take(match):
            raise ValueError(f"cannot be read at character {at + 1}: {text[at : at + 20]!r}")
        at = match.end()
    if not reader.close_rule():
        raise ValueError("ends within a group")
    return reader.rules


class _Reader:
    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self._ids: dict[str, int] = {}
        self._open: list[_Open] = []
        self._elements = 0

    def take(self, token: re.Match[str]) -> bool:
        """False where the token cannot stand."""
        kind = token.lastgroup
        if kind == "space":
            return True
        if kind == "define":
            return self._define(token["define"])
        if not self._open:
            return False
        if kind == "mark":
            return self._mark(token["mark"])
        if kind in ("low", "comma", "high"):
            return self._repeat(*_times(token))
        self._item(self._symbols(token))
        return True

    def close_rule(self) -> bool:
        if len(self._open) > 1:
            return False
        if self._open:
            self._close()
        return True

    def _define(self, name: str) -> bool:
        if not self.close_rule():
            return False
        self._open.append(_Open(self._named(name)))
        return True

    def _mark(self, mark: str) -> bool:
        top = self._open[-1]
        if mark == "(":
            self._open.append(_Open(self._rule(self.rules[top.rule].name)))
        elif mark == "|":
            self._count(1)
            top.alternatives.append([])
            top.item = 0
        elif mark == ")":
            if len(self._open) == 1:
                return False
            self._close()
            self._item([top.rule])
        else:
            return self._repeat(*_MARKED[mark])
        return True

    def _symbols(self, token: re.Match[str]) -> Sequence:
        if token["name"]:
            return [self._named(token["name"])]
        if token["one"]:
            return [TERMINAL]
        return [TERMINAL] * len(_CHARACTER.findall(token["string"] or token["members"] or ""))

    def _item(self, symbols: Sequence) -> None:
        self._count(len(symbols))
        top = self._open[-1]
        top.item = len(top.alternatives[-1])
        top.alternatives[-1] += symbols

    def _repeat(self, low: int, high: int | None) -> bool:
        """S{m,n} is m times S and then S'(n-m), where S'(k) is `S S'(k-1) |`."""
        top = self._open[-1]
        sequence = top.alternatives[-1]
        item = sequence[top.item :]
        # llama.cpp counts down from n - m, however far below zero.
        if not item or (high is not None and high < low):
            return False
        options = 1 if high is None else high - low
        self._count(low * len(item) + options * (len(item) + 3))
        sequence[top.item :] = item * low
        last: Sequence = []
        for _ in range(options):
            made = self._rule(self.rules[top.rule].name)
            tail = [made] if high is None else last
            self.rules[made] = Rule(self.rules[made].name, [item + tail, []], high is None)
            last = [made]
        sequence += last
        return True

    def _close(self) -> None:
        done = self._open.pop()
        self.rules[done.rule].alternatives = done.alternatives

    def _named(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = self._rule(name)
        return self._ids[name]

    def _rule(self, name: str) -> int:
        self._count(1)
        self.rules.append(Rule(name))
        return len(self.rules) - 1

    def _count(self, elements: int) -> None:
        self._elements += elements
        if self._elements > MAX_ELEMENTS:
            raise ValueError(f"expands to more than the {MAX_ELEMENTS} elements that are allowed")


def _times(token: re.Match[str]) -> tuple[int, int | None]:
    low = _number(token["low"])
    if token["comma"] is None:
        return low, low
    high = _number(token["high"]) if token["high"] else _UNLIMITED
    return low, high if high < _UNLIMITED else None


def _number(digits: str) -> int:
    # Ten digits are beyond every bound, whatever they are, and quick to read.
    return int(digits.lstrip("0")[:10] or "0")
