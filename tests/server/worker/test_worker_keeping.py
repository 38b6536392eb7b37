"""A worker tells what its requests have touched, and the next one reads it again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from made_models import MoeShape, write_moe
from page_files import drop_cache
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
from residency.modes import Mode, plan
from residency.pin import working_set
from residency.policy import Policy
from residency.procfs import ProcFS
from residency.ranges import Range, total
from residency.read_order import FilePart
from residency.reader import Progress
from server.protocol import Apply, FileRuns, PinReport, Ready, Shutdown, WorkingSet
from server.worker.keeping import EVERY_SECONDS, Keeping
from server.worker.pinning import Search
from server.worker.reading import reading

LAZY, EAGER = Policy(Mode.LAZY), Policy(Mode.EAGER)
WEIGHTS, FILE = [Range(4096, 8192)], Range(0, 10_000)
FOUND = WorkingSet("lazy", [[(4096, 8192)]])


# -- when it is told -------------------------------------------------------------------------


def found_in_three_steps(weights: Sequence[Range]) -> Iterator[list[Range] | None]:
    yield None
    yield None
    yield list(weights)


class World:
    def __init__(self, policy: Policy = LAZY, search: Search = found_in_three_steps) -> None:
        self.now = 0.0
        self.told: list[WorkingSet] = []
        self.keeping = Keeping(
            WEIGHTS, [FILE], policy, self.told.append, search=search, clock=lambda: self.now
        )


def test_it_is_told_in_steps_a_minute_after_the_load_and_after_the_last_time() -> None:
    world = World()
    for told in (1, 2):
        assert world.keeping.due_in is None, "nothing was asked of the model"
        world.keeping.on_request()
        world.now += EVERY_SECONDS - 1
        world.keeping.step()
        assert world.keeping.due_in == 1
        world.now += 1
        for _ in range(2):
            world.keeping.step()
            assert world.keeping.due_in == 0 and len(world.told) == told - 1
        world.keeping.step()
        assert world.told == [FOUND] * told


def test_the_end_tells_at_once_what_was_not_told() -> None:
    world = World()
    world.keeping.finish()
    assert world.told == []
    world.keeping.on_request()
    world.keeping.finish()
    world.keeping.finish()
    assert world.told == [FOUND]


def test_the_end_does_not_rely_on_half_a_search() -> None:
    searched = []

    def search(weights: Sequence[Range]) -> Iterator[list[Range] | None]:
        searched.append(weights)
        return found_in_three_steps(weights)

    world = World(search=search)
    world.keeping.on_request()
    world.now = EVERY_SECONDS
    world.keeping.step()
    world.keeping.finish()
    assert world.told == [FOUND] and len(searched) == 2


def test_a_mode_that_reads_all_keeps_nothing_and_a_change_ends_that() -> None:
    world = World(EAGER)
    world.keeping.on_request()
    world.now = EVERY_SECONDS
    world.keeping.step()
    world.keeping.finish()
    assert world.keeping.due_in is None and world.told == []
    world.keeping.follow(LAZY)
    world.keeping.finish()
    assert world.told == [FOUND]


def test_an_unknown_working_set_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world = World(search=partial(working_set, proc=ProcFS(tmp_path)))
    for _ in range(3):
        world.keeping.on_request()
        world.keeping.finish()
    assert world.told == []
    assert [record.message for record in caplog.records] == [
        f"the working set is unknown and not kept: no proc filesystem at {tmp_path}"
    ]


# -- real workers ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def moe(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of 48 experts, 2 used: a short prompt runs a part of them."""
    (path,) = write_moe(tmp_path_factory.mktemp("made") / "moe.gguf", smollm2, MoeShape())
    return path


HELLO = request("r", " hello", max_tokens=2)


def resident_bytes(path: Path, runs: Sequence[tuple[int, int]] | None = None) -> int:
    ranges = [Range(0, path.stat().st_size)] if runs is None else [Range(*run) for run in runs]
    with FileProbe([path]) as probe:
        resident, _ = probe.resident_bytes({path: ranges})
    assert resident is not None
    return resident


def touched_bytes(worker: WorkerProcess, path: Path) -> int:
    with FileProbe([path]) as probe:
        touched = sample(worker.process.pid, [path], None, probe).touched_bytes
    assert touched is not None
    return touched


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def size_of(files: FileRuns) -> int:
    return sum(end - start for runs in files for start, end in runs)


def ended(worker: WorkerProcess) -> None:
    """Nothing more came from a worker that was told to end."""
    with pytest.raises(AssertionError, match="closed its socket"):
        worker.receive()
    assert worker.process.wait(PATIENCE_SECONDS) == 0


def test_what_a_life_has_touched_is_read_for_the_next_and_nothing_else(moe: Path) -> None:
    drop_cache(moe)
    with worker_process() as worker:
        worker.send(load_message(moe, residency="lazy"))
        worker.expect(Ready)
        cold = worker.answer(HELLO)
        touched = touched_bytes(worker, moe)
        worker.send(Shutdown())
        kept = worker.expect(WorkingSet)
        ended(worker)
    size = size_of(kept.files)
    assert kept.residency == "lazy"
    assert touched <= size < 1.05 * touched
    assert size < 0.5 * moe.stat().st_size

    drop_cache(moe)
    with loaded_worker(moe, residency="lazy", replay=kept.files) as (worker, _):
        until(lambda: resident_bytes(moe, kept.files[0]) >= size)
        warm = worker.answer(HELLO)
        assert resident_bytes(moe) <= 1.15 * size
    assert warm.text == cold.text
    cold_read, warm_read = cold.end.timings.read_bytes, warm.end.timings.read_bytes
    assert cold_read is not None and warm_read is not None
    assert cold_read > 10_000_000
    assert warm_read < cold_read / 20


def test_a_replay_is_read_once(moe: Path) -> None:
    """Where memory has no room for all of it, it would come and go with each request."""
    whole = moe.stat().st_size
    drop_cache(moe)
    with loaded_worker(moe, residency="lazy", replay=[[(0, whole)]]) as (worker, _):
        until(lambda: resident_bytes(moe) >= whole)
        drop_cache(moe)
        worker.answer(HELLO)
        assert resident_bytes(moe) <= 1.15 * touched_bytes(worker, moe)


class Started:
    """In place of the native reader: what it is told to read, and that it has not ended."""

    def __init__(self) -> None:
        self.parts: list[Sequence[FilePart]] = []
        self.passes = 0

    @contextmanager
    def open(self, *given: object, **_: object) -> Iterator[Started]:
        self.parts.append(cast("Sequence[FilePart]", given[2]))
        yield self

    def progress(self) -> Progress:
        return Progress(passes=self.passes, bytes_read=0, errno=0, reading=True)


def test_a_replay_gives_way_to_the_first_request(
    moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, size = Started(), moe.stat().st_size
    monkeypatch.setattr("server.worker.reading.open_reader", started.open)
    with reading([moe], [[(0, size)]]) as ahead:
        ahead.follow(plan(Mode.LAZY))
        ahead.replay()
        ahead.on_wake()
        ahead.on_change(idle=False)
        until(lambda: len(started.parts) == 4)
        started.passes = 1
        ahead.on_wake()
        ahead.on_change(idle=True)
    unordered, dense, behind, waiting, again = [
        total(part.bytes for part in parts) for parts in started.parts
    ]
    assert unordered == size
    assert dense == waiting < 0.5 * size
    assert behind == again > 0.99 * size


def test_a_change_of_mode_goes_on_with_the_replay(moe: Path) -> None:
    whole = moe.stat().st_size
    drop_cache(moe)
    with loaded_worker(moe, residency="lazy", replay=[[(0, whole)]]) as (worker, _):
        worker.send(Apply("lazy_then_pin_resident", [], 0))
        worker.expect(PinReport)
        until(lambda: resident_bytes(moe) >= whole)


@pytest.mark.parametrize("mode", ["eager", "resident"])
def test_modes_that_read_all_tell_nothing(smollm2: Path, mode: str) -> None:
    with worker_process() as worker:
        worker.send(load_message(smollm2, residency=mode))
        worker.expect(Ready)
        worker.answer(HELLO)
        worker.send(Shutdown())
        ended(worker)


def test_a_life_without_a_request_tells_nothing(smollm2: Path) -> None:
    with worker_process() as worker:
        worker.send(load_message(smollm2, residency="lazy"))
        worker.expect(Ready)
        worker.send(Shutdown())
        ended(worker)


def test_of_a_replay_that_does_not_fit_the_file_the_rest_is_read(moe: Path) -> None:
    whole = moe.stat().st_size
    beyond: FileRuns = [[(-5, 10), (10, 5), (4096, 1 << 60), (0, whole)], [(0, 4096)]]
    drop_cache(moe)
    with loaded_worker(moe, residency="lazy", replay=beyond) as (worker, _):
        until(lambda: resident_bytes(moe) >= whole)
        assert worker.answer(HELLO).end.reason == "length"


def test_an_idle_worker_wakes_to_tell(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from server.worker import keeping\nkeeping.EVERY_SECONDS = 0.2\n"
    )
    with worker_process(python_path=tmp_path) as worker:
        worker.send(load_message(smollm2, residency="lazy"))
        worker.expect(Ready)
        worker.answer(HELLO)
        told = worker.expect(WorkingSet)
        worker.send(Shutdown())
        ended(worker)
    assert size_of(told.files) > 0.9 * smollm2.stat().st_size
