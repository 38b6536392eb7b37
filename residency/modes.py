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
    NORMAL = "normal"
    """As the kernel does of itself: undoes RANDOM."""
    DONTNEED = "dontneed"
    """Take them out of this process's page table. A file's page stays cached; anonymous memory
    would be lost."""
    HUGEPAGE = "hugepage"
    """Back them with huge pages: a page of a file that is not cached comes with the 2 MiB that
    it lies in."""
    NOHUGEPAGE = "nohugepage"
    """Never back them with huge pages: undoes HUGEPAGE."""


@dataclass(frozen=True)
class LoadPlan:
    """The switches of one load: three for llama.cpp, three for the worker."""

    use_mmap: bool
    use_mlock: bool
    prefetch: bool
    """All weights are read ahead from the load on; else only those that every forward pass
    touches whole."""
    advice: Advice
    """On the weights: WILLNEED is carried out by reading ahead into huge pages, RANDOM is for
    what a pass touches in part, HUGEPAGE for the copy."""
    pin_after_first: bool
    """Lock the working set when the first request completes."""
    copy: bool = False
    """Copy the weights to anonymous memory before anything reads them. With use_mmap, which
    then only lays out their addresses: the copy takes the mapping's place."""

    @property
    def leaves_out(self) -> bool:
        """Not all weights are read: which ones are wanted is known by what was touched."""
        return not (self.prefetch or self.copy)


class UnknownMode(ValueError):
    """The text names no mode."""


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
        Mode.RESIDENT: LoadPlan(
            use_mmap=True,
            use_mlock=False,
            prefetch=False,
            advice=Advice.HUGEPAGE,
            pin_after_first=False,
            copy=True,
        ),
    }
)

AVAILABLE: tuple[str, ...] = tuple(mode.value for mode in Mode)
"""The modes as users write them."""


def parse_mode(text: str) -> Mode:
    """The mode of that name. Raises UnknownMode."""
    try:
        return Mode(text)
    except ValueError:
        raise UnknownMode(
            f"unknown weight residency {text!r}: choose one of {', '.join(AVAILABLE)}"
        ) from None


def plan(mode: Mode) -> LoadPlan:
    """What a load in this mode asks for."""
    return PLANS[mode]
