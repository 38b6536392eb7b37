"""What a GBNF grammar may be before llama.cpp reads it: its parser recurses and multiplies."""

from __future__ import annotations

import re

from server.left_recursion import check_left_recursion

MAX_CHARACTERS = 1 << 16
# Frames of the parser's recursion, of about a kilobyte each on a stack of megabytes.
MAX_DEPTH = 200
# Rules that {m,n} makes, of about 200 bytes each.
MAX_REPETITIONS = 20_000

# Literals, character classes, token names and comments, in which brackets mean nothing.
_OPAQUE = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|<[^>]*>|#[^\n]*', re.DOTALL)
_REPETITION = re.compile(r"\{\s*([0-9]+)\s*,?\s*([0-9]*)")


def check_grammar(text: str) -> str:
    """The text. Raises ValueError if it is beyond bounds."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"has {len(text)} characters, at most {MAX_CHARACTERS} are allowed")
    if "\0" in text:
        raise ValueError("has a NUL character")
    structure = _OPAQUE.sub(" ", text)
    depth = _depth(structure)
    if depth > MAX_DEPTH:
        raise ValueError(f"nests {depth} groups, at most {MAX_DEPTH} are allowed")
    repeats = sum(_most(match[1], match[2]) for match in _REPETITION.finditer(structure))
    if repeats > MAX_REPETITIONS:
        raise ValueError(f"repeats {repeats} times in all, at most {MAX_REPETITIONS} are allowed")
    check_left_recursion(text)
    return text


def _depth(structure: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[()]", structure):
        depth = depth + 1 if bracket == "(" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _most(low: str, high: str) -> int:
    # Ten digits are beyond the bound, whatever they are, and quick to read.
    return max(int(number.lstrip("0")[:10] or "0") for number in (low, high))
