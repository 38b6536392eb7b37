"""The engine over a model that is a script: every way a request begins and ends."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from residency.modes import Mode
from residency.paging import Paging
from residency.pin import working_set
from residency.policy import Policy, parse_policy
from residency.procfs import ProcFS
from residency.ranges import Range
from server.protocol import (
    Accepted,
    Finished,
    FinishReason,
    Generate,
    Likelihood,
    PinReport,
    Rejected,
    Sampling,
    Step,
    ToDaemon,
    TokenLogprobs,
    WeightBytes,
)
from server.worker.backend import DECODED, NO_CELLS, NO_TOKEN
from server.worker.engine import Engine
from server.worker.pinning import Pinning, Search
from server.worker.refusals import RequestRefused
from server.worker.request import Meters
from server.worker.slots import Slice, Tokens
from server.worker.weights import WeightMap

END = 0
LETTERS = {i: bytes([96 + i]) for i in range(1, 27)}


@dataclass
class ScriptedSampler:
    """Draws a, b, c, … and then `last`, and refuses the draw of that number."""

    length: int
    last: int = END
    refused_draw: int = 0
    closed: bool = False
    drawn: int = 0

    def draw(self, row: int) -> int:
        self.drawn += 1
        if self.drawn == self.refused_draw:
            raise RequestRefused("too much", "grammar")
        return self.drawn if self.drawn <= self.length else self.last

    def close(self) -> None:
        assert not self.closed
        self.closed = True


@dataclass
class ScriptedModel:
    n_ctx: int = 32
    n_slots: int = 2
    n_vocab: int = 27
    longest_token: int = 1
    step_tokens: int = 4
    prefill_slice: int = 4
    whole_states: bool = False
    answer_length: int = 5
    last_token: int = END
    status: int = DECODED
    decodes: list[list[tuple[int, int]]] = field(default_factory=list)
    """Slot and number of tokens of each slice."""
    used: set[int] = field(default_factory=set)
    """Slots with KV cells."""
    full_until_forgotten: set[int] = field(default_factory=set)
    """No decode finds cells before these slots are forgotten."""
    forgotten: list[int] = field(default_factory=list)
    samplers: list[ScriptedSampler] = field(default_factory=list)

    def tokenize(self, text: str) -> Tokens:
        return np.array([ord(char) - 96 for char in text], dtype=np.int32)

    def piece(self, token: int) -> bytes:
        return LETTERS[token]

    def is_end(self, token: int) -> bool:
        return token == END

    def sampler(self, sampling: Sampling, prompt: Tokens, ignore_eos: bool) -> ScriptedSampler:
        self.samplers.append(ScriptedSampler(self.answer_length, self.last_token))
        return self.samplers[-1]

    def logprobs(self, row: int, token: int, n_top: int) -> TokenLogprobs:
        return TokenLogprobs(Likelihood(self.piece(token), -float(token)), [])

    def decode(self, slices: Sequence[Slice]) -> int:
        if self.full_until_forgotten - set(self.forgotten):
            return NO_CELLS
        self.decodes.append([(part.sequence.slot, part.n_tokens) for part in slices])
        self.used |= {part.sequence.slot for part in slices}
        return self.status

    def reaches(self, slot: int, n: int) -> bool:
        return slot in self.used

    def keep(self, slot: int, n: int) -> None:
        assert slot in self.used

    def share(self, source: int, slot: int, n: int) -> None:
        self.used.add(slot)

    def forget(self, slot: int) -> None:
        self.used.discard(slot)
        self.forgotten.append(slot)


MEMORY = mmap.mmap(-1, 4 * mmap.PAGESIZE)
ADDRESS = ctypes.addressof(ctypes.c_char.from_buffer(MEMORY))
WEIGHTS = WeightMap(WeightBytes(file=8), (Range(ADDRESS, ADDRESS + len(MEMORY)),), (), {}, {})


class ScriptedPin:
    """A search for the working set in two steps. It finds nothing, which locks at once."""

    steps = 0

    def run(self) -> Iterator[list[Range] | None]:
        self.steps = 1
        yield None
        self.steps = 2
        yield []


def first_request_pins(search: Search, repin_requests: int = 0) -> Pinning:
    """One step of it each time it is asked to go on."""
    policy = Policy(Mode.LAZY_THEN_PIN_RESIDENT, repin_requests=repin_requests)
    clock = count()
    return Pinning(WEIGHTS, policy, search=search, clock=lambda: float(next(clock)))


@dataclass
class World:
    model: ScriptedModel = field(default_factory=ScriptedModel)
    sent: list[ToDaemon] = field(default_factory=list)
    pins: list[ScriptedPin] = field(default_factory=list)
    now: int = 0
    repin_requests: int = 0
    paging: Paging = field(default_factory=lambda: Paging(7, 7))

    def __post_init__(self) -> None:
        self.pinning = first_request_pins(self._start_pin, self.repin_requests)
        meters = Meters(self._tick, lambda: self.paging)
        self.engine = Engine(self.model, self.sent.append, self.pinning, meters)

    def generate(self, request_id: str, prompt: str = "abc", max_tokens: int = -1) -> None:
        self.engine.on_generate(Generate(request_id, prompt, Sampling(), max_tokens))

    def run(self, steps: int = 50) -> None:
        for _ in range(steps):
            if not self.engine.idle:
                self.engine.step()

    def ends(self) -> dict[str, FinishReason]:
        return {m.id: m.reason for m in self.sent if isinstance(m, Finished)}

    def text(self, request_id: str) -> str:
        steps = [m for m in self.sent if isinstance(m, Step)]
        return "".join(p.text for step in steps for p in step.pieces if p.id == request_id)

    def _start_pin(self, mapped: Sequence[Range]) -> Iterator[list[Range] | None]:
        assert mapped == WEIGHTS.mapped
        self.pins.append(ScriptedPin())
        return self.pins[-1].run()

    def _tick(self) -> float:
        self.now += 1
        return float(self.now)


def fail_decode(world: World) -> None:
    world.model.status = -3
    world.generate("r")
    world.run(1)


def exhaust_cells(world: World) -> None:
    world.model.status = NO_CELLS
    world.generate("r")
    world.run(1)


def cancel(world: World, after_steps: int) -> None:
    world.generate("r", "abcdefgh")
    world.run(after_steps)
    world.engine.on_cancel("r")


def shut_down(world: World) -> None:
    world.generate("r")
    world.run(2)
    world.engine.end_all("cancelled")


def stop_string(world: World) -> None:
    world.engine.on_generate(Generate("r", "abc", Sampling(), -1, stop=["cd"]))
    world.run()


def plain(world: World, max_tokens: int) -> None:
    world.generate("r", max_tokens=max_tokens)
    world.run()


def full_context(world: World) -> None:
    world.model.answer_length = 26
    world.generate("r", "a" * 30)
    world.run()


# Each way a request can end: how, the reason, its tokens, and whether it completed.
ENDS: dict[str, tuple[Callable[[World], None], FinishReason, int, bool]] = {
    "end token": (lambda w: plain(w, -1), "stop", 6, True),
    "stop string": (stop_string, "stop", 4, True),
    "max_tokens": (lambda w: plain(w, 3), "length", 3, True),
    "context full": (full_context, "length", 3, True),
    "prefill only": (lambda w: plain(w, 0), "length", 0, False),
    "cancelled before its first step": (lambda w: cancel(w, 0), "cancelled", 0, False),
    "cancelled in prefill": (lambda w: cancel(w, 1), "cancelled", 0, False),
    "cancelled while decoding": (lambda w: cancel(w, 4), "cancelled", 3, False),
    "shutdown": (shut_down, "cancelled", 2, False),
    "failed decode": (fail_decode, "error", 0, False),
    "no cells": (exhaust_cells, "error", 0, False),
}


@pytest.mark.parametrize("case", ENDS)
def test_every_end_frees_the_slot_and_pins_only_what_completed(case: str) -> None:
    act, reason, n_tokens, completed = ENDS[case]
    world = World()
    act(world)
    (end,) = [m for m in world.sent if isinstance(m, Finished)]
    assert (end.reason, end.completion_tokens) == (reason, n_tokens)
    assert (end.error is not None) == (reason == "error")
    assert (world.model.used == set()) == (reason == "error" or case.endswith("first step"))
    assert [sampler.closed for sampler in world.model.samplers] == [True]
    world.model.status = DECODED
    world.run()
    assert len(world.pins) == completed
    assert world.engine.idle


def test_the_pin_starts_after_the_last_byte_runs_beside_requests_and_comes_once() -> None:
    world = World()
    world.generate("long")
    world.generate("short", max_tokens=1)
    while "short" not in world.ends():
        world.engine.step()
    # One slice in the step that ended it, one in the next, which decodes too.
    assert [pin.steps for pin in world.pins] == [1]
    world.engine.step()
    assert isinstance(world.sent[-1], PinReport)
    assert isinstance(world.sent[-2], Step)
    world.run()
    world.generate("another")
    world.run()
    assert len(world.pins) == 1
    assert sum(isinstance(m, PinReport) for m in world.sent) == 1


def test_the_pin_is_repeated_after_so_many_completed_requests() -> None:
    world = World(repin_requests=3)
    counts = []
    for number in range(8):
        world.generate(f"cancelled {number}")
        world.run(1)
        world.engine.on_cancel(f"cancelled {number}")
        world.generate(str(number))
        world.run()
        counts.append(len(world.pins))
    assert counts == [1, 1, 1, 2, 2, 2, 3, 3]


def test_the_last_of_several_changes_wins_and_the_others_get_no_report() -> None:
    world = World()
    world.generate("a")
    for mode in ("lazy", "lazy_then_pin_resident", "eager", "lazy"):
        world.pinning.apply(parse_policy(mode, [], 0))
    world.run()
    assert world.pins == [], "it is lazy when the request completes"
    assert sum(isinstance(m, PinReport) for m in world.sent) == 1
    world.pinning.apply(parse_policy("lazy_then_pin_resident", [], 0))
    world.run()
    assert world.pins == [], "armed again, for the next request"
    world.generate("b")
    world.run()
    assert len(world.pins) == 1


def test_one_that_completes_while_a_change_forgets_what_was_touched_does_not_pin() -> None:
    world = World()
    world.pinning.apply(parse_policy("eager", [], 0))
    world.run()
    world.pinning.apply(parse_policy("lazy_then_pin_resident", [], 0))
    world.pinning.step()
    world.pinning.on_completed()
    world.run()
    assert world.pins == []
    world.generate("a")
    world.run()
    assert len(world.pins) == 1


def test_a_change_of_the_classes_alone_keeps_a_pin_that_is_due() -> None:
    world = World()
    world.generate("a")
    while "a" not in world.ends():
        world.engine.step()
    assert [pin.steps for pin in world.pins] == [1]
    world.pinning.apply(parse_policy("lazy_then_pin_resident", ["attn"], 0))
    world.run()
    assert [pin.steps for pin in world.pins] == [1, 2], "it began anew and came to its end"


def test_an_unknown_working_set_is_reported_and_logged_by_the_daemon_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "self").mkdir()
    hook = first_request_pins(partial(working_set, proc=ProcFS(tmp_path)))
    hook.on_completed()
    report = hook.step()
    assert report is not None
    assert report.errno != 0
    assert "pagemap" in report.message
    assert not hook.busy
    assert caplog.records == []


def test_a_step_takes_decoding_slots_first_and_slices_prompts() -> None:
    world = World()
    world.generate("a", "ab")
    world.run(1)
    world.generate("b", "zyxwvuts")
    world.run(3)
    assert world.model.decodes == [[(0, 2)], [(0, 1), (1, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 2)]]
    assert world.text("a") == "abcd"
    assert world.text("b") == "a"


def test_one_message_a_step_for_all_slots() -> None:
    world = World()
    world.generate("a", "a")
    world.generate("b", "b")
    world.run(1)
    assert [type(m) for m in world.sent] == [Accepted, Accepted, Step]
    assert isinstance(world.sent[-1], Step)
    assert [piece.id for piece in world.sent[-1].pieces] == ["a", "b"]


def test_a_failed_decode_ends_what_was_in_it_and_serving_goes_on() -> None:
    world = World()
    world.generate("a")
    world.generate("b")
    world.model.status = -1
    world.run(1)
    # The budget was used up by a's three tokens and one of b's.
    assert world.ends() == {"a": "error", "b": "error"}
    world.model.status = DECODED
    world.generate("c")
    world.run()
    assert world.ends()["c"] == "stop"


def test_without_cells_the_youngest_waits_until_one_ends() -> None:
    world = World()
    world.generate("old")
    world.generate("young", "zyx")
    world.run(3)
    told = world.text("young")
    world.model.status = NO_CELLS
    world.run(1)
    world.model.status = DECODED
    world.run()
    assert world.ends() == {"old": "stop", "young": "stop"}
    assert told
    assert world.text("young") == world.text("old") == "abcde"
    # It has read again its prompt and what it had drawn, a step's tokens at a time.
    assert [(1, 4)] in world.model.decodes


def test_nothing_overtakes_a_preempted_request() -> None:
    world = World(ScriptedModel(n_slots=3))
    world.generate("old")
    world.generate("young", "zyx")
    world.run(2)
    world.model.status = NO_CELLS
    world.run(1)
    world.model.status = DECODED
    world.generate("new", "m", max_tokens=1)
    world.run()
    assert list(world.ends()) == ["old", "new", "young"]


def test_a_preempted_request_goes_before_one_that_never_started() -> None:
    world = World(ScriptedModel(n_slots=3))
    world.generate("old", "a" * 10)
    world.generate("young", "b" * 10)
    world.generate("new", "c" * 20)
    world.run(5)
    world.model.status = NO_CELLS
    world.run(1)
    world.model.status = DECODED
    world.run()
    assert list(world.ends()) == ["old", "young", "new"]


def test_idle_slots_go_before_a_request_does() -> None:
    world = World(ScriptedModel(n_slots=3))
    for name in ("abc", "xyz"):
        world.generate(name, name)
        world.run()
    world.generate("r", "mno")
    world.run(1)
    world.model.full_until_forgotten = {0, 1}
    world.run()
    assert world.model.forgotten == [0, 1]
    assert world.ends()["r"] == "stop"


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised() -> None:
    world = World(ScriptedModel(longest_token=3))
    world.generate("long", "a" * 97)
    world.generate("unsure", "a" * 96)
    long, unsure = (m for m in world.sent if isinstance(m, Rejected))
    assert long.message.startswith("the prompt has 97 bytes, so at least 33 tokens")
    assert unsure.message.startswith("the prompt has 96 tokens")


def test_a_prompt_that_takes_long_to_read_gives_signs_of_life() -> None:
    # The clock goes on by a second whenever it is asked, once a step.
    world = World(ScriptedModel(n_ctx=64, step_tokens=1))
    world.generate("long", "a" * 14, max_tokens=0)
    world.run()
    steps = [m for m in world.sent if isinstance(m, Step)]
    assert steps == [Step([]), Step([])]
    assert world.ends() == {"long": "length"}


def test_rejections_leave_nothing_behind() -> None:
    world = World()
    world.generate("long", "a" * 33)
    world.generate("empty", "")
    world.engine.on_generate(Generate("ids", [27], Sampling(), 1))
    world.engine.on_generate(Generate("bias", "a", Sampling(logit_bias={27: 1.0}), 1))
    rejected = [m.id for m in world.sent if isinstance(m, Rejected)]
    assert rejected == ["long", "empty", "ids", "bias"]
    assert world.engine.idle
    assert world.model.samplers == []


def test_where_no_token_is_admitted_the_answer_ends_with_what_it_has() -> None:
    world = World()
    world.model.answer_length, world.model.last_token = 2, NO_TOKEN
    world.engine.on_generate(Generate("a", "abc", Sampling(), -1, stop=["bx"]))
    world.run()
    (end,) = (m for m in world.sent if isinstance(m, Finished))
    assert (end.reason, end.completion_tokens) == ("stop", 2)
    assert world.text("a") == "ab"


def test_a_draw_that_is_refused_ends_its_request_alone_and_names_the_field() -> None:
    world = World()
    world.generate("bad")
    world.generate("good")
    world.model.samplers[0].refused_draw = 3
    world.run()
    bad, good = (m for m in world.sent if isinstance(m, Finished))
    assert (bad.id, bad.reason, bad.error, bad.param) == ("bad", "error", "too much", "grammar")
    assert (good.id, good.reason, good.param) == ("good", "stop", None)
    assert (world.text("bad"), world.text("good")) == ("ab", "abcde")
    # Without a token it has not completed, and what it was refused in is no working set.
    assert [sampler.closed for sampler in world.model.samplers] == [True, True]


def test_timings_are_of_the_request() -> None:
    world = World()
    world.generate("r", max_tokens=2)
    world.run()
    (end,) = [m for m in world.sent if isinstance(m, Finished)]
    # The clock moves by one at each look: start, first token, end.
    assert (end.timings.prompt_seconds, end.timings.predicted_seconds) == (1, 1)
    assert (end.timings.major_faults, end.timings.read_bytes) == (0, 0)


def test_a_request_is_told_what_was_paged_in_while_it_ran() -> None:
    world = World()
    world.paging = Paging(7, 4096)
    world.generate("r", max_tokens=2)
    world.paging = Paging(10, 12288)
    world.run()
    (end,) = [m for m in world.sent if isinstance(m, Finished)]
    assert (end.timings.major_faults, end.timings.read_bytes) == (3, 8192)
