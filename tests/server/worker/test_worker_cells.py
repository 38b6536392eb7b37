"""The engine over a model of the KV cache: what is believed to be in the cells is there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from residency.modes import Mode
from residency.paging import Paging
from residency.policy import Policy
from server.protocol import (
    Finished,
    Generate,
    Likelihood,
    Rejected,
    Sampling,
    Step,
    ToDaemon,
    TokenLogprobs,
)
from server.worker.backend import DECODED, NO_CELLS
from server.worker.engine import Engine
from server.worker.pinning import Pinning
from server.worker.request import Meters
from server.worker.slots import Slice, Tokens
from server.worker.weights import weight_map

N_CTX = 40
N_SLOTS = 4
N_VOCAB = 20


def next_token(tokens: Sequence[int]) -> int:
    """What the model says after these tokens: any difference in one of them changes it."""
    return hashlib.sha256(bytes(tokens)).digest()[0] % N_VOCAB


def answer(prompt: Sequence[int], n: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + n and len(tokens) <= N_CTX:
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass
class CellModel:
    """Cells with a token each, which several slots may share."""

    n_ctx: int = N_CTX
    n_slots: int = N_SLOTS
    n_vocab: int = N_VOCAB
    longest_token: int = 1
    step_tokens: int = 8
    prefill_slice: int = 3
    whole_states: bool = False
    window: int = N_CTX
    slots: dict[int, list[int]] = field(
        default_factory=lambda: {slot: [] for slot in range(N_SLOTS)}
    )
    """Cell numbers by position."""
    cells: dict[int, int] = field(default_factory=dict)
    """The token of each cell."""
    rows: list[int] = field(default_factory=list)
    computed: int = 0
    made: int = 0

    def tokenize(self, text: str) -> Tokens:
        raise AssertionError("prompts are tokens here")

    def piece(self, token: int) -> bytes:
        return bytes([97 + token])

    def is_end(self, token: int) -> bool:
        return False

    def sampler(self, sampling: Sampling, prompt: Tokens, ignore_eos: bool) -> CellModel:
        return self

    def draw(self, row: int) -> int:
        return next_token(self.tokens(self.rows[row]))

    def close(self) -> None:
        pass

    def logprobs(self, row: int, token: int, n_top: int) -> TokenLogprobs:
        return TokenLogprobs(Likelihood(self.piece(token), -float(token)), [])

    def decode(self, slices: Sequence[Slice]) -> int:
        n = sum(part.n_tokens for part in slices)
        assert n <= self.step_tokens
        if len(self._used()) + n > self.n_ctx:
            return NO_CELLS
        self.rows = [part.sequence.slot for part in slices]
        for part in slices:
            slot = self.slots[part.sequence.slot]
            assert part.sequence.n_past == len(slot)
            for token in part.sequence.take(part.n_tokens).tolist():
                self.cells[self.made] = token
                slot.append(self.made)
                self.made += 1
        self.computed += n
        return DECODED

    def tokens(self, slot: int) -> list[int]:
        return [self.cells[cell] for cell in self.slots[slot]]

    def reaches(self, slot: int, n: int) -> bool:
        return len(self.slots[slot]) <= max(self.window, n)

    def keep(self, slot: int, n: int) -> None:
        assert not self.whole_states or n == 0
        del self.slots[slot][n:]

    def share(self, source: int, slot: int, n: int) -> None:
        assert not self.whole_states
        assert not self.slots[slot]
        assert self.reaches(source, n)
        self.slots[slot] = self.slots[source][:n]

    def forget(self, slot: int) -> None:
        self.slots[slot] = []

    def _used(self) -> set[int]:
        return {cell for slot in self.slots.values() for cell in slot}


class World:
    def __init__(self, model: CellModel | None = None) -> None:
        self.model = model or CellModel()
        self.sent: list[ToDaemon] = []
        pin = Pinning(weight_map([], 4096), Policy(Mode.EAGER))
        meters = Meters(lambda: 0.0, lambda: Paging(0, 0))
        self.engine = Engine(self.model, self.sent.append, pin, meters)

    def generate(self, request_id: str, prompt: list[int], n: int) -> None:
        self.engine.on_generate(Generate(request_id, prompt, Sampling(), n))

    def step(self) -> None:
        self.engine.step()
        for held in self.engine.cells.held():
            assert held.tokens.tolist() == self.model.tokens(held.slot)

    def run(self) -> None:
        for _ in range(2000):
            if self.engine.idle:
                return
            self.step()
        raise AssertionError("never ended")

    def text(self, request_id: str) -> list[int]:
        steps = [m for m in self.sent if isinstance(m, Step)]
        text = "".join(p.text for step in steps for p in step.pieces if p.id == request_id)
        return [ord(char) - 97 for char in text]

    def end(self, request_id: str) -> Finished:
        (end,) = (m for m in self.sent if isinstance(m, Finished) and m.id == request_id)
        return end


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=N_CTX)
# A prompt, the tokens asked for, and the steps until the next comes; or a cancel of the one
# before.
events = st.lists(
    st.tuples(prompts, st.integers(-1, 12), st.integers(0, 6), st.booleans()), max_size=12
)


@pytest.mark.parametrize("kind", ["plain", "window", "whole"])
@settings(max_examples=60)
@given(events)
def test_every_request_gets_the_tokens_of_a_fresh_worker(
    kind: str, arrivals: list[tuple[list[int], int, int, bool]]
) -> None:
    model = CellModel(whole_states=kind == "whole", window=6 if kind == "window" else N_CTX)
    world = World(model)
    cancelled = set()
    for i, (prompt, n, steps, cancels) in enumerate(arrivals):
        world.generate(str(i), prompt, n)
        for _ in range(steps):
            world.step()
        if cancels:
            world.engine.on_cancel(str(i))
            cancelled.add(str(i))
    world.run()
    rejected = {m.id for m in world.sent if isinstance(m, Rejected)}
    for i, (prompt, n, _, _) in enumerate(arrivals):
        if str(i) in rejected:
            continue
        expected = answer(prompt, N_CTX if n < 0 else n)
        end = world.end(str(i))
        if str(i) in cancelled:
            assert world.text(str(i)) == expected[: end.completion_tokens]
        else:
            assert (end.reason, end.error) == ("length", None)
            assert world.text(str(i)) == expected
        assert end.cached_tokens < len(prompt)


def test_a_shared_prompt_is_computed_once() -> None:
    world = World(CellModel(n_ctx=1000, step_tokens=50))
    system = [i % 7 for i in range(200)]
    for i in range(4):
        world.generate(str(i), [*system, i], 2)
    world.run()
    # The first reads all; the others read their last token; each decodes one it has drawn.
    assert world.model.computed == 200 + 4 * 2
    assert sorted(world.end(str(i)).cached_tokens for i in range(4)) == [0, 200, 200, 200]


def test_requests_that_do_not_fit_together_take_turns() -> None:
    world = World()
    for i in range(4):
        world.generate(str(i), [i] * 8, 25)
    world.run()
    for i in range(4):
        assert world.text(str(i)) == answer([i] * 8, 25)
        assert world.end(str(i)).completion_tokens == 25


def test_what_does_not_fit_beside_another_is_not_begun() -> None:
    world = World()
    for i in range(3):
        world.generate(str(i), [i] * 30, 3)
    world.run()
    # Each token once: the last one drawn needs no computing.
    assert world.model.computed == 3 * (30 + 2)


def test_afterwards_the_whole_context_is_there_for_one() -> None:
    world = World()
    for i in range(12):
        world.generate(str(i), [i % 5] * (1 + 3 * i), 4)
        world.run()
    world.generate("all", [9] * N_CTX, 1)
    world.run()
    assert world.text("all") == answer([9] * N_CTX, 1)
