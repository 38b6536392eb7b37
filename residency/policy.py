"""How an operator wants one model's weights kept in RAM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from residency.classes import TensorClass, parse_class
from residency.modes import LoadPlan, Mode, parse_mode, plan


@dataclass(frozen=True)
class Policy:
    """What a load asks for, and what may be changed while the model is loaded."""

    mode: Mode
    pin: frozenset[TensorClass] = frozenset()
    """These classes are locked in every mapped mode; the rest is left to the mode."""
    repin_requests: int = 0
    """lazy_then_pin_resident repeats its pin after so many completed requests; 0: never."""

    @property
    def plan(self) -> LoadPlan:
        return plan(self.mode)

    def live_to(self, other: Policy) -> bool:
        """Whether a loaded model can change to the other: neither copies the weights."""
        return not (self.plan.copy or other.plan.copy)


def parse_policy(mode: str, pin: Iterable[str], repin_requests: int) -> Policy:
    """Of the names that users write. Raises UnknownMode, UnknownClass."""
    return Policy(parse_mode(mode), frozenset(map(parse_class, pin)), repin_requests)
