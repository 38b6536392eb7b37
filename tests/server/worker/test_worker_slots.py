"""The plan of a step: who gets tokens, and how many."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.worker.slots import Sequence, plan_step, prompt_shares

N_CTX = 64


def sequence(n_prompt: int, max_tokens: int = -1, slot: int = 0) -> Sequence:
    made = Sequence(np.arange(n_prompt, dtype=np.int32), max_tokens, N_CTX)
    made.slot = slot
    return made


@given(
    st.lists(st.tuples(st.integers(1, N_CTX), st.integers(-1, 20)), min_size=1, max_size=8),
    st.integers(8, 32),
    st.integers(1, 40),
)
def test_all_end_within_budget_and_order(
    shapes: list[tuple[int, int]], budget: int, prefill_slice: int
) -> None:
    running = [sequence(n, limit, slot) for slot, (n, limit) in enumerate(shapes)]
    for _ in range(8 * N_CTX):
        decoding = {s.slot for s in running if s.behind == 1}
        slices = plan_step(running, budget, prefill_slice)
        assert sum(part.n_tokens for part in slices) <= budget
        if decoding:
            assert decoding <= {part.sequence.slot for part in slices}
            read = [p.n_tokens for p in slices if p.sequence.slot not in decoding]
            assert sum(read) <= prefill_slice
        assert len({part.sequence.slot for part in slices}) == len(slices)
        for part in slices:
            s = part.sequence
            assert s.take(part.n_tokens).tolist() == list(range(s.n_past, s.n_past + part.n_tokens))
            s.n_past += part.n_tokens
            assert part.samples == (s.behind == 0 and not s.exhausted)
            if part.samples:
                s.append(s.n_known)
        running = [s for s in running if not (s.exhausted and (s.behind == 0 or s.generated))]
        if not running:
            return
    raise AssertionError(f"never ended: {running}")


def lengths(sequences: list[Sequence], budget: int, prefill_slice: int) -> list[tuple[int, int]]:
    plan = plan_step(sequences, budget, prefill_slice)
    return [(part.sequence.slot, part.n_tokens) for part in plan]


def test_a_decoding_sequence_never_waits_for_a_prompt_and_bounds_what_is_read() -> None:
    old, new = sequence(4, slot=0), sequence(60, slot=1)
    old.n_past = 4
    old.append(4)
    assert lengths([new, old], 8, 5) == [(0, 1), (1, 5)]
    assert lengths([new, old], 8, 40) == [(0, 1), (1, 7)]


def test_prompts_alone_take_the_whole_step() -> None:
    first, second, third = sequence(60, slot=0), sequence(5, slot=1), sequence(60, slot=2)
    assert lengths([first, second, third], 31, 4) == [(0, 26), (1, 5)]


def test_prompts_of_one_length_are_read_one_after_the_other() -> None:
    first, second = sequence(20, slot=0), sequence(20, slot=1)
    assert lengths([first, second], 30, 4) == [(0, 20), (1, 10)]


def test_a_long_prompt_neither_holds_up_short_ones_nor_is_held_up_by_them() -> None:
    assert prompt_shares([4000, 100, 50, 300], 200) == [100, 50, 50, 0]
    assert prompt_shares([4000, 100, 50, 300], 1000) == [550, 100, 50, 300]


@given(st.lists(st.integers(1, 100), max_size=8), st.integers(0, 300))
def test_shares_take_all_there_is_and_give_the_oldest_half(wants: list[int], total: int) -> None:
    shares = prompt_shares(wants, total)
    assert sum(shares) == min(total, sum(wants))
    assert all(0 <= share <= want for share, want in zip(shares, wants, strict=True))
    assert not wants or shares[0] >= min(wants[0], total / 2)
    later = list(zip(wants, shares, strict=True))[1:]
    for want, share in later:
        if share:
            assert all(other == given for other, given in later if other < want)


def test_the_context_bounds_what_is_generated() -> None:
    assert sequence(N_CTX).max_new == 1
    assert sequence(60, max_tokens=10**12).max_new == 5
    assert sequence(60, max_tokens=2).max_new == 2
    assert sequence(60, max_tokens=0).exhausted
