"""Model names: what is one, and that none leaves the tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.errors import InvalidName
from manifests.names import ModelName, parse_name


def test_tag_defaults_to_latest() -> None:
    assert parse_name("llama") == parse_name("llama:latest") == ModelName("llama", "latest")
    assert str(parse_name("llama")) == "llama:latest"


def test_namespace_parts_and_case_are_kept() -> None:
    name = parse_name("hf.co/Org/Repo-GGUF:Q4_K_M")
    assert name.parts == ("hf.co", "Org", "Repo-GGUF")
    assert name.tag == "Q4_K_M"
    assert parse_name("Llama") != parse_name("llama")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        ":tag",
        "name:",
        ".",
        "..",
        "../x",
        "a/../b",
        "a//b",
        "/a",
        "a/",
        "a/.hidden",
        "a:.x",
        "a:..",
        "a:b/c",
        "a:../b",
        "localhost:5000/x",
        "a:b:c",
        "a\\b",
        "a\0b",
        "a\nb",
        "a\n",
        "a b",
        "ä",
        "a%2e%2e",
        "a.json",
        "a/b.json/c",
        "x" * 256,
        "a:" + "t" * 251,
        "/".join(["part"] * 300),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_name(text)


def test_longest_that_fits_a_file_name() -> None:
    name = parse_name("x" * 255 + ":" + "t" * 250)
    assert len(f"{name.tag}.json") == 255


def test_message_names_the_text_and_the_fault() -> None:
    with pytest.raises(InvalidName, match="'a:b/c': the tag has characters other than"):
        parse_name("a:b/c")


def test_hidden_parts_are_told_as_such() -> None:
    with pytest.raises(InvalidName, match=r"a part starts with a dot: '\.hidden'"):
        parse_name("a/.hidden")


def test_a_name_made_without_parsing_is_checked_too() -> None:
    with pytest.raises(InvalidName):
        ModelName("../x", "latest")


_NASTY = st.text(alphabet=st.sampled_from("ab./\\:~\0-_%\n "), max_size=12)


@given(_NASTY | st.text())
def test_no_accepted_name_leaves_the_tree(text: str) -> None:
    try:
        name = parse_name(text)
    except InvalidName:
        return
    root = Path("/root/of/tree")
    path = root.joinpath(*name.parts, f"{name.tag}.json")
    assert Path(os.path.normpath(path)) == path
    assert path.is_relative_to(root)
    assert parse_name(str(name)) == name
