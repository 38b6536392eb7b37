"""Grammars that llama.cpp's parser would not survive never reach it."""

from __future__ import annotations

import pytest

from server.grammars import MAX_CHARACTERS, MAX_DEPTH, MAX_REPETITIONS, check_grammar


def nested(depth: int) -> str:
    return "root ::= " + "(" * depth + '"a"' + ")" * depth


def test_what_is_within_bounds_passes_as_it_is() -> None:
    for text in ("", nested(MAX_DEPTH), f'root ::= "a"{{{MAX_REPETITIONS}}}'):
        assert check_grammar(text) == text


def test_brackets_that_are_text_do_not_nest() -> None:
    opaque = [r'"\"((("', r"[^\](((]", "# (((\n", "<((>"]
    text = "root ::= (" + " ".join(opaque * 100) + ' ("a"))'
    assert check_grammar(text) == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (nested(MAX_DEPTH + 1), f"nests {MAX_DEPTH + 1} groups, at most {MAX_DEPTH}"),
        ("(" * 50_000, "nests 50000 groups"),
        ('root ::= "a' + "(" * 50_000, "nests 50000 groups"),
        ("root ::= " + '"a"{0,2000} ' * 11, "repeats 22000 times"),
        ("root ::= [a]{" + "9" * 5000 + "}", "repeats 9999999999 times"),
        ("root ::= [a]{" + "0" * 50 + "20001}", "repeats 20001 times"),
        ("root ::= root [a]", "rule 'root' can begin with itself"),
        ("x" * (MAX_CHARACTERS + 1), f"has {MAX_CHARACTERS + 1} characters"),
        ("root ::= [a]\0", "NUL"),
    ],
)
def test_what_is_beyond_is_refused_with_its_number(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        check_grammar(text)
