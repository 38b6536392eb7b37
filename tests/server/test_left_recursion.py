"""Grammars that llama.cpp would follow without end are refused, others are not."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.gbnf import MAX_ELEMENTS
from server.left_recursion import MAX_BEGINNINGS, check_left_recursion

JSON = r"""# values only
root ::= space (list | text | "null" | [0-9]+ ("." [0-9]{1,9})?) space
list ::= "[" (root ("," root)*)? "]"  # right recursion
text ::= "\"" ([^"\\\x00-\x1f] | "\\" [bfnrt"\\] | "\\u" [0-9a-fA-F]{4})* "\""
space ::= | " " |
   "\n" [ \t]{0,20}
"""


def doubled(rules: int) -> str:
    """Each rule begins with the next in two ways."""
    chain = "\n".join(f"r{i} ::= r{i + 1} | r{i + 1}" for i in range(rules))
    return f'root ::= r0\n{chain}\nr{rules} ::= "a"'


@pytest.mark.parametrize(
    "text",
    [
        "",
        JSON,
        doubled(8),
        'root ::= "a" root | "b"',
        'root ::= (("a"?)* "b")+',
        "root ::= <think> !<[12]>* . <[7]>",
        "root ::= [a-\\]] [\\]\\-x] [^-]",
        "root ::= place",
        "root ::= [a]{0,5000} [a]{3,} [a]{2}",
        'root ::= root "a"\nroot ::= "b"',
    ],
)
def test_what_ends_passes(text: str) -> None:
    check_left_recursion(text)


@pytest.mark.parametrize(
    "beginning",
    ["", "x", "x*", "x?", '"a"?', '"a"*', '"a"{0,3}', '"a"{0}', '""', "[]", "(x | [a])", "(|[a])"],
)
def test_recursion_behind_what_may_be_empty_is_refused(beginning: str) -> None:
    text = f'root ::= "c" | {beginning} root "b"\nx ::= y y\ny ::= [a] |'
    with pytest.raises(ValueError, match="rule 'root' can begin with itself"):
        check_left_recursion(text)


@pytest.mark.parametrize("item", ["x", '"a"', "x+", '"a"{1,3}', "[^a]", "(x | [a])", ".", "<[1]>"])
def test_recursion_behind_what_is_never_empty_passes(item: str) -> None:
    check_left_recursion(f'root ::= "c" | {item} root\nx ::= "a"')


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('root ::= "c"\na ::= b "x"\nb ::= (c)\nc ::= a?', "rule 'a' can begin"),
        ('root ::= (x)*\nx ::= root? "a"', "rule 'root' can begin"),
        (doubled(26), f"in more than {MAX_BEGINNINGS} ways"),
        ("\n".join(f"r{9999 - i} ::= r{9998 - i}" for i in range(9999)), "too deeply"),
        ('root ::= "' + "a" * 60_000 + '"{2000}', f"more than the {MAX_ELEMENTS} elements"),
        ('root ::= "a"' + "+" * 60_000, "elements"),
        ('root ::= "a"{2,1}', r"at character 13: '\{2,1\}'"),
        ('root ::= ""*', "at character 12"),
        ('root ::= "a', "at character 10"),
        ('root ::= "\\q"', "at character 10"),
        ("root ::= [a", "at character 10"),
        ("root ::= a_b", "at character 11"),
        ("root ::= )", "at character 10"),
        ('"a"', "at character 1"),
        ('root ::= ("a"', "ends within a group"),
        ('root ::= ("a"\nx ::= "b"', "at character 15"),
    ],
)
def test_what_does_not_end_or_is_no_grammar_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        check_left_recursion(text)


ITEMS = st.sampled_from(
    ["a", "b", "root", '"x"', '""', "[ab]", "(", ")", "|", "*", "+", "?", "{0,2}", "{3}", "."]
)
BODIES = st.lists(ITEMS, max_size=12).map(" ".join)


@given(st.tuples(BODIES, BODIES, BODIES), st.text(max_size=3))
def test_any_text_is_answered(bodies: tuple[str, str, str], junk: str) -> None:
    names = ("root", "a", "b")
    text = "\n".join(f"{name} ::= {body}" for name, body in zip(names, bodies, strict=True))
    started = time.process_time()
    for grammar in (text, text + junk):
        try:
            check_left_recursion(grammar)
        except ValueError as error:
            assert str(error)
    assert time.process_time() - started < 1


@given(st.lists(st.sampled_from(['"x"', "[ab]", "a+", "(a | .)"]), max_size=5), st.integers(0, 4))
def test_direct_left_recursion_is_always_refused(others: list[str], at: int) -> None:
    alternatives = [*others]
    alternatives.insert(at, 'root "y"')
    with pytest.raises(ValueError, match="'root' can begin with itself"):
        check_left_recursion('a ::= "a"\nroot ::= ' + " | ".join(alternatives))
