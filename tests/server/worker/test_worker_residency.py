"""What each residency mode does to a real worker's memory, and that none changes a token."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_models import MoeShape, write_moe
from page_files import MIB, WITHOUT_IPC_LOCK, drop_cache, drops_rights, needs_lock
from slow_disk import needs_slow_disk, slow_disk
from worker_process import (
    PATIENCE_SECONDS,
    WorkerProcess,
    load_message,
    loaded_worker,
    request,
    worker_process,
)

from residency.file_cache import FileProbe
from residency.ledger import sample
from residency.libc import PAGE_BYTES
from residency.modes import AVAILABLE, Mode, plan
from residency.ranges import Range, total
from residency.read_order import FileTensor
from server.protocol import Embed, Generate, PinReport, Ready
from server.worker.reading import reading

PROMPT = "1, 2, 3, 4,"


@contextmanager
def in_mode(path: Path, residency: str) -> Iterator[tuple[WorkerProcess, Ready]]:
    with loaded_worker(path, residency=residency, n_slots=2) as pair:
        yield pair


@pytest.fixture(scope="module")
def moe(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of 48 experts, 2 used: a short prompt runs a part of them."""
    (path,) = write_moe(tmp_path_factory.mktemp("made") / "moe.gguf", smollm2, MoeShape())
    return path


@pytest.fixture
def own_copy(smollm2: Path, tmp_path: Path) -> Path:
    """A copy that nothing else maps, so that its cache can be dropped."""
    return Path(shutil.copyfile(smollm2, tmp_path / "model.gguf"))


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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
    assert len(texts) == len(AVAILABLE)
    assert len(set(texts.values())) == 1


def resident_bytes(path: Path) -> int:
    with FileProbe([path]) as probe:
        resident, _ = probe.resident_bytes({path: [Range(0, path.stat().st_size)]})
    assert resident is not None
    return resident


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_a_cold_dense_model_is_read_ahead_of_the_computing(own_copy: Path, mode: str) -> None:
    """Into the page cache. The page table holds what was computed with."""
    drop_cache(own_copy)
    with in_mode(own_copy, mode) as (worker, ready):
        at_load = touched_bytes(worker, own_copy)
        cold = worker.answer(request("r", PROMPT, max_tokens=1)).end.timings
        warm = worker.answer(request("r", PROMPT, max_tokens=1)).end.timings
        touched = touched_bytes(worker, own_copy)
    assert at_load < 0.05 * ready.weights.file
    assert touched > 0.9 * ready.weights.file
    assert cold.major_faults < touched / PAGE_BYTES / 10
    assert warm.major_faults < 100 and warm.read_bytes is not None
    assert warm.read_bytes < 0.01 * ready.weights.file


@pytest.mark.parametrize(
    ("mode", "kept"),
    [
        (Mode.EAGER, []),
        (Mode.LAZY, [(MIB, 90 * MIB)]),
        (Mode.LAZY, [(MIB, 8 * MIB), (40 * MIB, 48 * MIB)]),
    ],
)
def test_reading_what_is_known_to_be_wanted_waits_for_no_header(
    own_copy: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode, kept: list[tuple[int, int]]
) -> None:
    """Which lies before it, and is read first."""
    drop_cache(own_copy)
    size = own_copy.stat().st_size
    wanted = total([Range(0, kept[0][1]), *(Range(*run) for run in kept[1:])]) if kept else size
    parsing = threading.Event()

    def parsed_late(_path: Path, _file: int) -> list[FileTensor]:
        parsing.wait(PATIENCE_SECONDS)
        return []

    monkeypatch.setattr("server.worker.reading.file_tensors", parsed_late)
    with reading([own_copy], [kept]) as ahead:
        ahead.follow(plan(mode))
        until(lambda: resident_bytes(own_copy) >= wanted)
        time.sleep(0.1)
        # In huge pages up to two more come behind, in others none.
        most = wanted + (4 * MIB if wanted > 0.9 * size else 0)
        assert resident_bytes(own_copy) <= most
        parsing.set()


@pytest.mark.parametrize(
    ("mode", "asked"),
    [
        ("eager", request("r", PROMPT, max_tokens=1)),
        ("lazy", request("r", PROMPT, max_tokens=1)),
        ("lazy", Embed("r", [PROMPT])),
    ],
)
def test_the_weights_come_without_a_request_and_again_if_they_have_left(
    own_copy: Path, mode: str, asked: Generate | Embed
) -> None:
    drop_cache(own_copy)
    with in_mode(own_copy, mode) as (worker, ready):
        until(lambda: resident_bytes(own_copy) >= ready.weights.file)
        drop_cache(own_copy)
        timings = worker.answer(asked).end.timings
        until(lambda: resident_bytes(own_copy) >= ready.weights.file)
    assert timings.read_bytes is not None
    # An embedding's time begins when its context is open, and the reading before.
    assert 0.2 * ready.weights.file < timings.read_bytes < 1.2 * ready.weights.file
    assert timings.major_faults < ready.weights.file / PAGE_BYTES / 10


def test_lazy_keeps_out_the_experts_that_no_token_runs(moe: Path) -> None:
    drop_cache(moe)
    with in_mode(moe, "lazy") as (worker, ready):
        timings = worker.answer(request("r", " hello", max_tokens=2)).end.timings
        touched, resident = touched_bytes(worker, moe), resident_bytes(moe)
    assert touched < 0.5 * ready.weights.file
    assert resident <= 1.15 * touched
    assert timings.major_faults < touched / PAGE_BYTES / 10, "those that run are read whole"


def test_eager_reads_the_experts_too(moe: Path) -> None:
    drop_cache(moe)
    with in_mode(moe, "eager") as (worker, ready):
        until(lambda: resident_bytes(moe) >= ready.weights.file)
        assert touched_bytes(worker, moe) < 0.1 * ready.weights.file


@needs_slow_disk
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_a_worker_ends_while_it_reads(own_copy: Path, mode: str) -> None:
    """At 20 MB/s: all of it takes 5 seconds, the pieces under way a fifth of one."""
    drop_cache(own_copy)
    with slow_disk(own_copy, 20 << 20) as prefix, worker_process(prefix) as worker:
        worker.send(load_message(own_copy, residency=mode))
        worker.expect(Ready)
        assert worker.shut_down() == 0
        assert resident_bytes(own_copy) < 0.8 * own_copy.stat().st_size


@needs_slow_disk
def test_tokens_are_the_same_while_the_weights_are_still_coming(own_copy: Path) -> None:
    texts = set()
    for mode in ("eager", "lazy", "lazy"):
        drop_cache(own_copy)
        with (
            slow_disk(own_copy, 60 << 20) as prefix,
            loaded_worker(own_copy, prefix=prefix, residency=mode) as (worker, _),
        ):
            texts.add(worker.answer(request("r", PROMPT, max_tokens=8)).text)
    assert len(texts) == 1


@needs_lock
def test_pinned_locks_all_weights(smollm2: Path) -> None:
    with in_mode(smollm2, "pinned") as (worker, ready):
        report = worker.expect(PinReport)
        assert worker.status().locked_bytes >= report.bytes_asked
    assert report.bytes_locked == report.bytes_asked >= ready.weights.file
    assert (report.errno, report.message) == (0, "")


@pytest.mark.parametrize("mode", ["eager", "lazy", "resident"])
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
