"""A policy is read from names, and changes under a loaded model where the file stays mapped."""

from __future__ import annotations

import pytest

from residency.classes import TensorClass, UnknownClass
from residency.modes import Mode, UnknownMode
from residency.policy import Policy, parse_policy


def test_it_is_read_from_the_names_that_users_write() -> None:
    assert parse_policy("lazy", ["attn", "norm"], 3) == Policy(
        Mode.LAZY, frozenset({TensorClass.ATTN, TensorClass.NORM}), 3
    )


def test_a_typo_is_told_with_what_there_is() -> None:
    with pytest.raises(UnknownMode, match="lazy_then_pin_resident"):
        parse_policy("lasy", [], 0)
    with pytest.raises(UnknownClass, match=r"'atn'.* attn, norm"):
        parse_policy("lazy", ["atn"], 0)


def test_mapped_modes_change_into_each_other() -> None:
    mapped = [Policy(mode) for mode in Mode if mode is not Mode.RESIDENT]
    assert all(before.live_to(after) for before in mapped for after in mapped)
