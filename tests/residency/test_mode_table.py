"""Modes resolve to the switches of the contract's table, and refuse by name."""

import pytest

from residency.modes import (
    AVAILABLE,
    DEFAULT_MODE,
    PLANS,
    Advice,
    Mode,
    UnknownMode,
    parse_mode,
    plan,
)


@pytest.mark.parametrize(
    ("name", "triple", "advice", "pins", "copies"),
    [
        ("eager", (True, False, True), Advice.WILLNEED, False, False),
        ("lazy", (True, False, False), Advice.RANDOM, False, False),
        ("pinned", (True, True, True), Advice.WILLNEED, False, False),
        ("lazy_then_pin_resident", (True, False, False), Advice.RANDOM, True, False),
        # Mapped for the addresses alone; what it serves from is the copy.
        ("resident", (True, False, False), Advice.HUGEPAGE, False, True),
    ],
)
def test_each_mode_is_its_row_of_the_table(
    name: str, triple: tuple[bool, bool, bool], advice: Advice, pins: bool, copies: bool
) -> None:
    got = plan(parse_mode(name))
    assert (got.use_mmap, got.use_mlock, got.prefetch) == triple
    assert (got.advice, got.pin_after_first, got.copy) == (advice, pins, copies)


def test_every_mode_has_a_row() -> None:
    assert set(PLANS) == set(Mode)


def test_the_default_is_eager() -> None:
    assert DEFAULT_MODE == "eager"


@pytest.mark.parametrize("text", ["", "Eager", "lazzy", "mlock"])
def test_an_unknown_mode_is_named_with_those_that_work(text: str) -> None:
    with pytest.raises(UnknownMode) as caught:
        parse_mode(text)
    assert repr(text) in str(caught.value)
    assert all(mode in str(caught.value) for mode in AVAILABLE)
