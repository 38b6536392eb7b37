"""What each residency mode does to a real worker's memory, and that none changes a token."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from page_files import WITHOUT_IPC_LOCK, drop_cache, drops_rights, needs_lock
from worker_process import WorkerProcess, loaded_worker, request

from residency.file_cache import FileProbe
from residency.ledger import sample
from residency.libc import PAGE_BYTES
from residency.modes import AVAILABLE
from server.protocol import PinReport, Ready

PROMPT = "1, 2, 3, 4,"


@contextmanager
def in_mode(path: Path, residency: str) -> Iterator[tuple[WorkerProcess, Ready]]:
    with loaded_worker(path, residency=residency, n_slots=2) as pair:
        yield pair


@pytest.fixture
def own_copy(smollm2: Path, tmp_path: Path) -> Path:
    """A copy that nothing else maps, so that its cache can be dropped."""
    return Path(shutil.copyfile(smollm2, tmp_path / "model.gguf"))


def pin_report(worker: WorkerProcess) -> PinReport:
    """The one that came between a request's messages, or comes now."""
    message = worker.others.pop() if worker.others else worker.receive()
    assert isinstance(message, PinReport)
    return message


def touched_bytes(worker: WorkerProcess, path: Path) -> int:
    with FileProbe([path]) as probe:
        touched = sample(worker.process.pid, [path], None, probe).touched_bytes
    assert touched is not None
    return touched


@needs_lock
def test_greedy_tokens_are_the_same_in_every_mode(smollm2: Path) -> None:
    texts = {}
    for mode in AVAILABLE:
        with in_mode(smollm2, mode) as (worker, _):
            texts[mode] = worker.answer(request("r", "Once upon a time", max_tokens=24)).text
    assert len(texts) == 4
    assert len(set(texts.values())) == 1


def test_lazy_holds_little_at_load_and_eager_all(own_copy: Path) -> None:
    drop_cache(own_copy)
    with in_mode(own_copy, "lazy") as (worker, ready):
        lazy = touched_bytes(worker, own_copy)
        cold = worker.answer(request("r", PROMPT, max_tokens=1)).end.timings
        warm = worker.answer(request("r", PROMPT, max_tokens=1)).end.timings
        touched = touched_bytes(worker, own_copy)
    drop_cache(own_copy)
    with in_mode(own_copy, "eager") as (worker, _):
        eager = touched_bytes(worker, own_copy)
        quiet = worker.answer(request("r", PROMPT, max_tokens=1)).end.timings.major_faults
    assert lazy < 0.05 * ready.weights.file
    assert touched > 0.9 * ready.weights.file
    assert eager >= ready.weights.file
    assert cold.major_faults > 1000 and warm.major_faults < 100
    assert cold.read_bytes is not None and warm.read_bytes is not None
    assert 0.9 * ready.weights.file < cold.read_bytes < 1.2 * ready.weights.file
    assert warm.read_bytes < 0.01 * ready.weights.file
    assert quiet < 100


@needs_lock
def test_pinned_locks_all_weights(smollm2: Path) -> None:
    with in_mode(smollm2, "pinned") as (worker, ready):
        report = worker.expect(PinReport)
        assert worker.status().locked_bytes >= report.bytes_asked
    assert report.bytes_locked == report.bytes_asked >= ready.weights.file
    assert (report.errno, report.message) == (0, "")


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_the_other_modes_lock_nothing(smollm2: Path, mode: str) -> None:
    with in_mode(smollm2, mode) as (worker, _):
        worker.answer(request("r", PROMPT, max_tokens=2))
        assert worker.status().locked_bytes == 0
        assert worker.others == []


@needs_lock
def test_the_working_set_is_pinned_once_after_the_first_completed_request(smollm2: Path) -> None:
    with in_mode(smollm2, "lazy_then_pin_resident") as (worker, ready):
        worker.answer(request("prefill", PROMPT, max_tokens=0))
        worker.accepted(request("cancelled", PROMPT, max_tokens=-1, ignore_eos=True))
        worker.cancel("cancelled")
        worker.collect(["cancelled"])
        worker.rejected(request("rejected", ""))
        assert worker.status().locked_bytes == 0

        worker.answer(request("first", PROMPT, max_tokens=2))
        report = pin_report(worker)
        locked = worker.status().locked_bytes
        assert 0 < report.bytes_locked == report.bytes_asked <= locked
        assert locked < ready.weights.file + 2 * PAGE_BYTES
        assert report.errno == 0

        worker.answer(request("second", "Something else entirely", max_tokens=2))
        worker.answer(request("third", PROMPT, max_tokens=0))
        assert worker.others == []
        assert worker.status().locked_bytes == locked


@drops_rights
@pytest.mark.parametrize("mode", ["pinned", "lazy_then_pin_resident"])
def test_a_refused_lock_is_reported_and_the_model_serves(smollm2: Path, mode: str) -> None:
    prefix = ["prlimit", "--memlock=65536:65536", *WITHOUT_IPC_LOCK]
    with loaded_worker(smollm2, prefix=prefix, residency=mode) as (worker, _):
        answer = worker.answer(request("r", PROMPT, max_tokens=3))
        report = pin_report(worker)
        assert worker.answer(request("again", PROMPT, max_tokens=3)).text == answer.text
        assert worker.status().locked_bytes < 65_536
    assert answer.end.reason == "length"
    assert report.bytes_locked < report.bytes_asked
    assert report.errno != 0
    assert "RLIMIT_MEMLOCK is 65536" in report.message
