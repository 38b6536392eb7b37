"""Modes resolve to the switches of the contract's table, and refuse by name."""

import pytest

from residency.modes import (
    AVAILABLE,
    DEFAULT_MODE,
    Advice,
    Mode,
    UnavailableMode,
    UnknownMode,
    parse_mode,
    plan,
)


@pytest.mark.parametrize(
    ("name", "triple", "advice", "pins"),
    [
        ("eager", (True, False, True), Advice.WILLNEED, False),
        ("lazy", (True, False, False), Advice.RANDOM, False),
        ("pinned", (True, True, True), Advice.WILLNEED, False),
        ("lazy_then_pin_resident", (True, False, False), Advice.RANDOM, True),
    ],
)
def test_each_mode_is_its_row_of_the_table(
    name: str, triple: tuple[bool, bool, bool], advice: Advice, pins: bool
) -> None:
    got = plan(parse_mode(name))
    assert (got.use_mmap, got.use_mlock, got.prefetch) == triple
    assert (got.advice, got.pin_after_first) == (advice, pins)


def test_the_default_is_eager() -> None:
    assert DEFAULT_MODE == "eager"


def test_resident_is_known_but_refused_by_name_with_what_to_use() -> None:
    mode = parse_mode("resident")
    assert mode is Mode.RESIDENT
    with pytest.raises(UnavailableMode, match="'resident' is not in this version: use 'pinned'"):
        plan(mode)
    assert "resident" not in AVAILABLE


@pytest.mark.parametrize("text", ["", "Eager", "lazzy", "mlock"])
def test_an_unknown_mode_is_named_with_those_that_work(text: str) -> None:
    with pytest.raises(UnknownMode) as caught:
        parse_mode(text)
    assert repr(text) in str(caught.value)
    assert all(mode in str(caught.value) for mode in AVAILABLE)
