"""The plan of a step: who gets tokens, and how many."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.worker.slots import Sequence, plan_step

N_CTX = 64


def sequence(n_prompt: int, max_tokens: int = -1, slot: int = 0) -> Sequence:
    return Sequence(slot, np.arange(n_prompt, dtype=np.int32), max_tokens, N_CTX)


@given(
    st.lists(st.tuples(st.integers(1, N_CTX), st.integers(-1, 20)), min_size=1, max_size=8),
    st.integers(8, 32),
)
def test_all_end_within_budget_and_order(shapes: list[tuple[int, int]], budget: int) -> None:
    running = [sequence(n, limit, slot) for slot, (n, limit) in enumerate(shapes)]
    for _ in range(8 * N_CTX):
        slices = plan_step(running, budget)
        assert sum(part.n_tokens for part in slices) <= budget
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


def test_a_decoding_sequence_never_waits_for_a_prompt() -> None:
    old, new = sequence(4, slot=0), sequence(60, slot=1)
    old.n_past = 4
    old.append(4)
    plan = plan_step([new, old], 8)
    assert [(p.sequence.slot, p.n_tokens, p.samples) for p in plan] == [(0, 1, True), (1, 7, False)]


def test_prompts_come_in_order() -> None:
    first, second = sequence(6, slot=0), sequence(6, slot=1)
    plan = plan_step([first, second], 8)
    assert [(p.sequence.slot, p.n_tokens, p.samples) for p in plan] == [(0, 6, True), (1, 2, False)]


def test_the_context_bounds_what_is_generated() -> None:
    assert sequence(N_CTX).max_new == 1
    assert sequence(60, max_tokens=10**12).max_new == 5
    assert sequence(60, max_tokens=2).max_new == 2
    assert sequence(60, max_tokens=0).exhausted
