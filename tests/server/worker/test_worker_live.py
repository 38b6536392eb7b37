"""Changes of how the weights are kept, of a loaded model whose requests run on meanwhile."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from made_models import MoeShape, write_moe
from page_files import WITHOUT_IPC_LOCK, drops_rights, flagged_bytes, needs_lock
from worker_process import (
    Answer,
    WorkerProcess,
    load_message,
    loaded_worker,
    request,
    worker_process,
)

from residency.file_cache import FileProbe
from residency.ledger import sample
from residency.libc import PAGE_BYTES
from residency.modes import PLANS, Mode
from server.protocol import Apply, Finished, PinReport, Ready, Step

PROMPT = "Once upon a time"
LAZY_FIRST = "lazy_then_pin_resident"
# Each mapped mode is changed into each other one.
EVERY_CHANGE = [
    *("eager", "lazy", "eager", "pinned", "eager", LAZY_FIRST, "lazy"),
    *("pinned", "lazy", LAZY_FIRST, "pinned", LAZY_FIRST, "eager"),
]


@pytest.fixture(scope="module")
def made_moe(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    """A mixture of 24 experts, of which a short prompt touches a part."""
    path = tmp_path_factory.mktemp("made") / "moe.gguf"
    (whole,) = write_moe(path, smollm2, MoeShape(experts=24))
    return whole


def apply(worker: WorkerProcess, residency: str, *pin: str, repin_requests: int = 0) -> None:
    worker.send(Apply(residency, list(pin), repin_requests))


def report_beside(worker: WorkerProcess, answer: Answer) -> PinReport:
    """The next report; until it comes, what a running request says is noted."""
    while not isinstance(message := worker.receive(), PinReport):
        assert not isinstance(message, Finished), "the stream was to run across the change"
        if isinstance(message, Step):
            answer.text += "".join(piece.text for piece in message.pieces)
    return message


def touched_bytes(worker: WorkerProcess, path: Path) -> int:
    with FileProbe([path]) as probe:
        touched = sample(worker.process.pid, [path], None, probe).touched_bytes
    assert touched is not None
    return touched


@needs_lock
def test_every_change_under_a_stream_takes_hold_and_changes_no_token(smollm2: Path) -> None:
    long = request("r", PROMPT, max_tokens=900, ignore_eos=True)
    with loaded_worker(smollm2, n_ctx=1024, n_slots=1) as (worker, _):
        expected = worker.answer(long).text
    mapped = [mode for mode in Mode if not PLANS[mode].copy]
    assert set(pairwise(EVERY_CHANGE)) == {(a, b) for a in mapped for b in mapped if a != b}
    with loaded_worker(smollm2, n_ctx=1024, n_slots=1) as (worker, ready):
        pid, answer = worker.process.pid, Answer()
        worker.accepted(long)
        for mode in EVERY_CHANGE[1:]:
            apply(worker, mode)
            report = report_beside(worker, answer)
            locked = worker.status().locked_bytes
            assert (report.bytes_locked, report.message) == (report.bytes_asked, ""), mode
            assert locked == report.bytes_locked == flagged_bytes(pid, smollm2, "lo")
            assert (locked >= ready.weights.file) == (mode == "pinned")
            assert (locked == 0) == (mode != "pinned")
        answer.text += worker.collect(["r"])[0].text
    assert answer.text == expected


def test_experts_are_spared_the_kernels_read_ahead_in_the_lazy_modes_alone(
    made_moe: Path,
) -> None:
    with loaded_worker(made_moe, residency="eager") as (worker, ready):
        random = {}
        for mode in ("eager", "lazy", "eager"):
            apply(worker, mode)
            worker.expect(PinReport)
            random[mode] = flagged_bytes(worker.process.pid, made_moe, "rr")
    assert random["eager"] == 0
    assert random["lazy"] > 0.7 * ready.weights.file


@needs_lock
def test_a_change_to_the_working_sets_mode_arms_its_pin_anew(smollm2: Path) -> None:
    with loaded_worker(smollm2, residency="pinned") as (worker, ready):
        worker.expect(PinReport)
        apply(worker, LAZY_FIRST)
        worker.expect(PinReport)
        assert touched_bytes(worker, smollm2) == 0, "what pinned had read does not count"
        worker.answer(request("r", PROMPT, max_tokens=2))
        report = worker.others.pop() if worker.others else worker.receive()
        assert isinstance(report, PinReport)
        assert 0.9 * ready.weights.file < report.bytes_locked == worker.status().locked_bytes


@needs_lock
@pytest.mark.parametrize("mode", ["eager", "lazy", LAZY_FIRST])
def test_classes_are_pinned_at_load_and_the_rest_is_left_to_the_mode(
    smollm2: Path, mode: str
) -> None:
    with loaded_worker(smollm2, residency=mode, pin=["attn", "norm"]) as (worker, ready):
        report = worker.expect(PinReport)
        locked = worker.status().locked_bytes
        assert locked == report.bytes_locked == report.bytes_asked
        assert locked == flagged_bytes(worker.process.pid, smollm2, "lo")
        # 26.5 of 134.5 million parameters are attention's and the norms'.
        assert 0.15 * ready.weights.file < locked < 0.3 * ready.weights.file
        before = worker.answer(request("r", PROMPT, max_tokens=4)).text
        if mode == LAZY_FIRST:
            grown = worker.others.pop() if worker.others else worker.receive()
            assert isinstance(grown, PinReport)
            assert grown.bytes_locked > 3 * locked
        apply(worker, "lazy", "norm")
        fewer = worker.expect(PinReport)
        assert fewer.bytes_locked == worker.status().locked_bytes < 0.02 * ready.weights.file
        assert worker.answer(request("again", PROMPT, max_tokens=4)).text == before


@needs_lock
def test_a_tied_matrix_is_pinned_as_output_too(smollm2: Path) -> None:
    locked = []
    for kind in ("embd", "output"):
        with loaded_worker(smollm2, residency="lazy", pin=[kind]) as (worker, _):
            locked.append(worker.expect(PinReport).bytes_locked)
    assert locked[0] == locked[1] > 49152 * 576 // 2, "the token table at four bits"


@needs_lock
def test_a_repeated_pin_locks_what_is_new(made_moe: Path) -> None:
    with loaded_worker(made_moe, residency=LAZY_FIRST, repin_requests=2) as (worker, ready):
        sizes = []
        for number in range(5):
            tokens = [3 + number * 40 + at for at in range(8)]
            worker.answer(request(f"r{number}", tokens, max_tokens=2))
            worker.answer(request(f"nothing{number}", tokens, max_tokens=0))
            if number % 2 == 0:
                report = worker.others.pop() if worker.others else worker.receive()
                assert isinstance(report, PinReport)
                assert report.bytes_locked == report.bytes_asked == worker.status().locked_bytes
                sizes.append(report.bytes_locked)
            assert worker.others == []
    assert sizes[0] < sizes[1] < sizes[2] < ready.weights.file


@drops_rights
def test_a_refused_lock_of_a_change_is_told_and_the_stream_goes_on(smollm2: Path) -> None:
    prefix = ["prlimit", "--memlock=65536:65536", *WITHOUT_IPC_LOCK]
    long = request("r", PROMPT, max_tokens=200, ignore_eos=True)
    with loaded_worker(smollm2, prefix=prefix, residency="lazy") as (worker, ready):
        answer = Answer()
        worker.accepted(long)
        apply(worker, "pinned")
        refused = report_beside(worker, answer)
        assert refused.errno != 0
        assert "RLIMIT_MEMLOCK is 65536" in refused.message
        assert refused.bytes_asked >= ready.weights.file
        assert refused.bytes_locked == worker.status().locked_bytes < 65_536
        apply(worker, "lazy")
        undone = report_beside(worker, answer)
        assert (undone.bytes_asked, undone.message) == (0, "")
        assert worker.status().locked_bytes == 0
        assert worker.collect(["r"])[0].end.reason == "length"


@needs_lock
def test_a_change_that_comes_during_the_load_is_made_after_it(smollm2: Path) -> None:
    with worker_process() as worker:
        worker.send(load_message(smollm2, residency="lazy"), Apply("pinned", [], 0))
        ready = worker.expect(Ready)
        assert worker.expect(PinReport).bytes_locked >= ready.weights.file
        assert worker.shut_down() == 0


def test_pages_that_two_tensors_share_are_locked_for_either(made_moe: Path) -> None:
    """Norms of 2 KiB, two to a page with what lies beside them."""
    with loaded_worker(made_moe, residency="lazy", pin=["norm"]) as (worker, _):
        report = worker.expect(PinReport)
    assert report.bytes_locked % PAGE_BYTES == 0
    assert report.bytes_locked > 5 * 512 * 4
