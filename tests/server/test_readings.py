"""A scrape never waits for a large model, and says how old what it tells is."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from made_calls import made_ready, made_spec

from residency.file_cache import FileProbe, Source
from residency.ledger import Ledger
from residency.procfs import ProcessGone
from server.calls import LoadedModel
from server.ledgers import Ledgers
from server.readings import Reading, Readings

SMALL, LARGE = 1000, 1001
LEDGER = Ledger(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, Source.MINCORE)


@dataclass
class Kernel:
    """Takes its time over large models, until it is let."""

    seconds: float = 0
    let: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    began: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    samples: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)

    def sample(self, model: LoadedModel, probe: FileProbe) -> Ledger:
        name = model.spec.name
        self.samples.append(name)
        if name.startswith("large"):
            self.began.release()
            assert self.let.acquire(timeout=10)
        if name in self.gone:
            raise ProcessGone(name)
        return LEDGER

    def clock(self) -> float:
        return self.seconds


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.let.release(100)


def made(folder: Path, names: Sequence[str]) -> list[LoadedModel]:
    models = []
    for pid, name in enumerate(names, 1):
        path = folder / name
        with path.open("wb") as file:
            file.truncate(LARGE if name.startswith("large") else SMALL // 2)
        models.append(LoadedModel(made_spec(name, path=str(path)), pid, made_ready(), 0, 0, None))
    return models


def readings_of(kernel: Kernel, models: Sequence[LoadedModel], patience: float = 0) -> Readings:
    ledgers = Ledgers(kernel.sample)
    ledgers.follow(models)
    return Readings(ledgers, at_once_bytes=SMALL, patience=patience, clock=kernel.clock)


def test_small_models_are_sampled_at_each_read(kernel: Kernel, tmp_path: Path) -> None:
    models = made(tmp_path, ["a", "b"])
    readings = readings_of(kernel, models)
    for _ in range(2):
        assert readings.read(models) == {"a": Reading(LEDGER, 0), "b": Reading(LEDGER, 0)}
    assert len(kernel.samples) == 4


def test_together_they_are_large(kernel: Kernel, tmp_path: Path) -> None:
    """Two are read at once; the third is sampled beside, and not there at first."""
    models = made(tmp_path, ["a", "b", "c"])
    readings = readings_of(kernel, models, patience=0)
    assert {"a", "b"} <= readings.read(models).keys()
    assert readings._running.keys() | readings._newest.keys() == {3}


def test_a_read_does_not_wait_for_a_large_model_which_has_one_sample_under_way(
    kernel: Kernel, tmp_path: Path
) -> None:
    models = made(tmp_path, ["large", "small"])
    readings = readings_of(kernel, models)
    for _ in range(3):
        assert readings.read(models) == {"small": Reading(LEDGER, 0)}
    assert kernel.began.acquire(timeout=10)
    assert kernel.samples.count("large") == 1


def test_the_newest_sample_is_told_with_its_age(kernel: Kernel, tmp_path: Path) -> None:
    models = made(tmp_path, ["large"])
    readings = readings_of(kernel, models)
    readings.read(models)
    assert kernel.began.acquire(timeout=10)
    kernel.seconds = 4
    kernel.let.release()
    readings._running[1].result(10)
    assert readings.read(models) == {"large": Reading(LEDGER, 4)}
    # The next is under way, and until it is there the first gets older.
    kernel.seconds = 9
    assert readings.read(models) == {"large": Reading(LEDGER, 9)}
    assert kernel.began.acquire(timeout=10)
    assert kernel.samples.count("large") == 2


def test_a_large_model_that_is_sampled_quickly_is_fresh(kernel: Kernel, tmp_path: Path) -> None:
    models = made(tmp_path, ["large"])
    readings = readings_of(kernel, models, patience=10)
    kernel.let.release()
    assert readings.read(models) == {"large": Reading(LEDGER, 0)}


def test_what_cannot_be_sampled_is_unknown_and_not_its_last_value(
    kernel: Kernel, tmp_path: Path
) -> None:
    models = made(tmp_path, ["large", "small"])
    readings = readings_of(kernel, models, patience=10)
    kernel.let.release(9)
    assert readings.read(models)["large"].ledger is LEDGER
    kernel.gone = {"large", "small"}
    assert readings.read(models) == {"large": Reading(None, 0), "small": Reading(None, 0)}


def test_of_a_model_that_is_gone_nothing_is_kept(kernel: Kernel, tmp_path: Path) -> None:
    models = made(tmp_path, ["large"])
    readings = readings_of(kernel, models, patience=10)
    kernel.let.release()
    readings.read(models)
    assert readings.read([]) == {}
    assert not readings._newest and not readings._running
