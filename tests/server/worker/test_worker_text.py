"""The text stream against a slow and obvious model of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.worker.text import TextStream

TEXT = st.text(alphabet="abé", max_size=20)
STOPS = st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3)
CUTS = st.lists(st.integers(min_value=1, max_value=3), max_size=20)


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """Character by character: the text before the first stop string to be complete."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - len(max(ending, key=len))], True
    return text, False


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    out = []
    for cut in cuts:
        out.append(data[:cut])
        data = data[cut:]
    return [*out, data]


@given(TEXT, STOPS, CUTS)
def test_the_text_does_not_depend_on_the_cuts(text: str, stops: list[str], cuts: list[int]) -> None:
    stream = TextStream(stops)
    seen = ""
    for chunk in chunks(text.encode(), cuts):
        seen += stream.push(chunk)
        # Whatever has been given out stays part of the answer.
        assert expected(text, stops)[0].startswith(seen)
    seen += stream.flush()
    assert (seen, stream.stopped) == expected(text, stops)


@given(st.text(alphabet="aé🐙", max_size=20), CUTS)
def test_nothing_is_held_but_the_bytes_of_one_character(text: str, cuts: list[int]) -> None:
    stream = TextStream([])
    data, seen = b"", ""
    for chunk in chunks(text.encode(), cuts):
        data += chunk
        seen += stream.push(chunk)
        assert len(data) - len(seen.encode()) < 4


def test_a_stop_string_over_tokens_is_held_and_given_back() -> None:
    stream = TextStream(["</end>"])
    assert [stream.push(piece) for piece in (b"hi <", b"/", b"en", b"try", b"</e")] == [
        "hi ",
        "",
        "",
        "</entry",
        "",
    ]
    assert stream.flush() == "</e"


def test_broken_bytes_are_replaced_and_a_broken_end_is_lost() -> None:
    stream = TextStream([])
    assert stream.push(b"a\xffb\xf0\x9f") == "a\N{REPLACEMENT CHARACTER}b"
    assert stream.flush() == ""


def test_the_stop_string_that_is_complete_first_counts() -> None:
    assert TextStream(["abc", "b"]).push(b"abc") == "a"
    assert TextStream(["b", "ab"]).push(b"abc") == ""


def test_empty_stop_strings_are_ignored() -> None:
    assert TextStream([""]).push(b"abc") == "abc"


def test_nothing_comes_after_a_stop() -> None:
    stream = TextStream(["b"])
    assert (stream.push(b"abc"), stream.push(b"d"), stream.flush()) == ("a", "", "")
