"""The weight residency modes, and what each asks of a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Mode(StrEnum):
    """When weight bytes come into RAM, and what keeps them there."""

    EAGER = "eager"
    LAZY = "lazy"
    PINNED = "pinned"
    LAZY_THEN_PIN_RESIDENT = "lazy_then_pin_resident"
    RESIDENT = "resident"


class Advice(StrEnum):
    """What the kernel is told about weight pages with madvise(2)."""

    WILLNEED = "willneed"
    """Read them now."""
    RANDOM = "random"
    """Read only what is touched, no neighbours."""


@dataclass(frozen=True)
class LoadPlan:
    """The switches of one load: three for llama.cpp, two for the worker."""

    use_mmap: bool
    use_mlock: bool
    prefetch: bool
    """All weights are read ahead from the load on; else only those that every forward pass
    touches whole."""
    advice: Advice
    """Given over the weights once they are mapped."""
    pin_after_first: bool
    """Lock the working set when the first request completes."""


class UnknownMode(ValueError):
    """The text names no mode."""


class UnavailableMode(ValueError):
    """The mode is named in the contract, but this version cannot serve it."""


DEFAULT_MODE = Mode.EAGER

PLANS: Mapping[Mode, LoadPlan] = MappingProxyType(
    {
        Mode.EAGER: LoadPlan(
            use_mmap=True,
            use_mlock=False,
            prefetch=True,
            advice=Advice.WILLNEED,
            pin_after_first=False,
        ),
        Mode.LAZY: LoadPlan(
            use_mmap=True,
            use_mlock=False,
            prefetch=False,
            advice=Advice.RANDOM,
            pin_after_first=False,
        ),
        Mode.PINNED: LoadPlan(
            use_mmap=True,
            use_mlock=True,
            prefetch=True,
            advice=Advice.WILLNEED,
            pin_after_first=False,
        ),
        Mode.LAZY_THEN_PIN_RESIDENT: LoadPlan(
            use_mmap=True,
            use_mlock=False,
            prefetch=False,
            advice=Advice.RANDOM,
            pin_after_first=True,
        ),
    }
)

AVAILABLE: tuple[str, ...] = tuple(mode.value for mode in PLANS)
"""The modes that this version serves, as users write them."""


def parse_mode(text: str) -> Mode:
    """The mode of that name, served by this version or not. Raises UnknownMode."""
    try:
        return Mode(text)
    except ValueError:
        raise UnknownMode(
            f"unknown weight residency {text!r}: choose one of {', '.join(AVAILABLE)}"
        ) from None


def plan(mode: Mode) -> LoadPlan:
    """What a load in this mode asks for. Raises UnavailableMode."""
    try:
        return PLANS[mode]
    except KeyError:
        raise UnavailableMode(
            f"weight residency {mode.value!r} is not in this version: "
            f"use {Mode.PINNED.value!r} to keep the weights in RAM, "
            f"or another of {', '.join(AVAILABLE)}"
        ) from None
