"""Where a sequence starts: which slot it takes, and whose KV cells it begins with. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from server.worker.slots import Tokens

# A slot may lose up to this share of what it keeps: the end of an answer that the next turn
# of the same conversation writes otherwise, rather than another conversation.
_LITTLE = 0.25

# Waiting may cost a step. On a CPU this many tokens of a prompt take about as long to read.
_WORTH_A_STEP = 16


@dataclass(frozen=True)
class Held:
    """A slot and the tokens whose KV cells it holds."""

    slot: int
    tokens: Tokens
    busy: bool
    n_prompt: int = 0
    """The first of them that were its request's prompt; the others are an answer."""


@dataclass(frozen=True)
class Placement:
    slot: int
    source: int
    """The slot whose first `n_keep` cells it begins with; `slot` itself keeps them in place."""
    n_keep: int


def shared_prefix(one: Tokens, other: Tokens) -> int:
    """Tokens that both begin with."""
    n = min(len(one), len(other))
    differs = one[:n] != other[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


def place(
    tokens: Tokens,
    slots: Sequence[Held],
    *,
    whole_states: bool,
    reaches: Callable[[int, int], bool],
) -> Placement:
    """Chooses for a sequence of these tokens; the last of them is always computed.

    `slots` has an idle one, and the idle ones come least recently used first. With
    `whole_states` a slot's cells can neither be cut back nor shared. `reaches(slot, n)` says
    whether the token after the slot's first n would still see all cells it attends to.
    """
    idle = [held for held in slots if not held.busy]
    oldest = next((held for held in idle if not len(held.tokens)), idle[0])
    matches = [
        (n, not held.busy, _lost(held, n) == 0, rank)
        for rank, held in enumerate(slots)
        if (n := shared_prefix(tokens[:-1], held.tokens))
        and not (whole_states and (held.busy or _lost(held, n)))
        and reaches(held.slot, n)
    ]
    if not matches:
        return Placement(oldest.slot, oldest.slot, 0)
    n_keep, _, _, rank = max(matches)
    source = slots[rank]
    # The same prompt once more: its other answer is of no use to anybody.
    again = n_keep == len(tokens) - 1 and len(tokens) == source.n_prompt
    in_place = not source.busy and (again or _lost(source, n_keep) <= _LITTLE * n_keep)
    return Placement(source.slot if in_place else oldest.slot, source.slot, n_keep)


def comes_soon(tokens: Tokens, n_keep: int, reading: Collection[Tokens]) -> bool:
    """Whether one of the prompts being read shares so much more than `n_keep` tokens with this
    sequence that it should wait for those instead of computing them a second time."""
    return any(shared_prefix(tokens[:-1], one) >= n_keep + _WORTH_A_STEP for one in reading)


def _lost(held: Held, n_keep: int) -> int:
    """Cells that a cut after `n_keep` gives up."""
    return len(held.tokens) - n_keep
