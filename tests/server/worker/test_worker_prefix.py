"""Where a sequence starts, against a plain model of the rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.worker.prefix import Held, Placement, comes_soon, place, shared_prefix
from server.worker.slots import Tokens

# Two tokens, so that prefixes are often shared.
texts = st.lists(st.integers(0, 1), max_size=12)
holdings = st.lists(st.tuples(texts, st.booleans()), min_size=1, max_size=6).filter(
    lambda slots: any(not busy for _, busy in slots)
)


def array(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, dtype=np.int32)


def held(*slots: tuple[Sequence[int], bool]) -> list[Held]:
    return [Held(slot, array(tokens), busy) for slot, (tokens, busy) in enumerate(slots)]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n


def placed(tokens: Sequence[int], *slots: tuple[Sequence[int], bool]) -> Placement:
    return place(array(tokens), held(*slots), whole_states=False, reaches=lambda slot, n: True)


@given(texts, texts)
def test_shared_prefix(one: list[int], other: list[int]) -> None:
    assert shared_prefix(array(one), array(other)) == common(one, other)


@given(texts.filter(bool), holdings, st.sets(st.integers(0, 5)), st.booleans())
def test_the_longest_usable_prefix_and_never_a_busy_slot(
    tokens: list[int], slots: list[tuple[list[int], bool]], cut_off: set[int], whole: bool
) -> None:
    placement = place(
        array(tokens),
        held(*slots),
        whole_states=whole,
        reaches=lambda slot, n: slot not in cut_off,
    )
    usable = [0]
    for slot, (kept, busy) in enumerate(slots):
        n = common(tokens[:-1], kept)
        if slot not in cut_off and not (whole and (busy or n < len(kept))):
            usable.append(n)
    assert placement.n_keep == max(usable) < len(tokens)
    assert not slots[placement.slot][1]
    kept, busy = slots[placement.source]
    assert common(tokens, kept) >= placement.n_keep
    if placement.source == placement.slot:
        return
    # The slot that is overwritten is the least recently used, an empty one if there is one.
    assert not whole
    idle = [slot for slot, (_, is_busy) in enumerate(slots) if not is_busy]
    assert placement.slot == next((slot for slot in idle if not slots[slot][0]), idle[0])


def test_a_conversation_goes_on_in_its_slot() -> None:
    kept = list(range(100))
    assert placed([*kept, 7, 8], ([], False), (kept, False)) == Placement(1, 1, 100)
    # The end of its answer is written otherwise now.
    assert placed([*kept[:90], 7, 8], ([], False), (kept, False)) == Placement(1, 1, 90)


def test_another_conversation_shares_what_both_begin_with() -> None:
    kept = list(range(100))
    assert placed([*kept[:60], 7, 8], ([], False), (kept, False)) == Placement(0, 1, 60)


def test_the_same_prompt_takes_the_place_of_its_last_answer() -> None:
    prompt, answers = array([1, 2, 3]), array([1, 2, 3, 7, 7, 7])

    def chosen(n_prompt: int) -> Placement:
        slots = [Held(0, array([]), False), Held(1, answers, False, n_prompt)]
        return place(prompt, slots, whole_states=False, reaches=lambda slot, n: True)

    assert chosen(3) == Placement(1, 1, 2)
    # A longer conversation that only begins like it stays.
    assert chosen(5) == Placement(0, 1, 2)


def test_of_equals_the_most_recently_used_gives() -> None:
    assert placed([1, 2, 9], ([1, 2, 3], False), ([1, 2, 4], False), ([5], False)).source == 1
    assert placed([1, 2, 9], ([1, 2], False), ([1, 2, 4], False)) == Placement(0, 0, 2)


def test_a_busy_slot_shares_too() -> None:
    kept = list(range(100))
    assert placed([*kept, 7, 8], (kept, True), ([1, 2], False)) == Placement(1, 0, 100)


def test_a_prompt_already_in_cells_computes_its_last_token() -> None:
    assert placed([1, 2, 3], ([1, 2, 3, 4], False)) == Placement(0, 0, 2)


def test_what_shares_nothing_takes_the_least_recently_used() -> None:
    assert placed([9], ([1], True), ([2], False), ([3], False)) == Placement(1, 1, 0)
    assert placed([9], ([2], False), ([3], False), ([], False)) == Placement(2, 2, 0)


def test_it_pays_to_wait_for_much_that_is_being_read() -> None:
    prompt = array(range(100))
    assert comes_soon(prompt, 0, [array(range(16))])
    assert not comes_soon(prompt, 0, [array(range(15))])
    assert not comes_soon(prompt, 1, [array(range(16))])
    assert not comes_soon(prompt, 0, [])
