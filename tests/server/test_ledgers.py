"""Sampling residency while models come and go."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_calls import made_ready, made_spec

from residency.file_cache import FileProbe
from residency.ledger import Ledger
from residency.procfs import ProcessGone
from server.calls import LoadedModel
from server.ledgers import Ledgers, LedgerUnavailable

SIZE = 16 * mmap.PAGESIZE


def loaded(path: Path, pid: int) -> LoadedModel:
    return LoadedModel(made_spec("m", path=str(path)), pid, made_ready(), 0, 0, None)


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    """A model of which this process is the worker."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * SIZE)
    return loaded(path, os.getpid())


@contextmanager
def mapped(path: str) -> Iterator[mmap.mmap]:
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as map:
        yield map


def fds_on(path: str) -> int:
    entries = Path("/proc/self/fd").iterdir()
    return sum(1 for entry in entries if entry.is_symlink() and str(entry.readlink()) == path)


def test_the_ledger_of_a_worker_tells_its_mappings_and_the_weights_it_reported(
    model: LoadedModel,
) -> None:
    ledgers = Ledgers()
    ledgers.follow([model])
    with mapped(model.spec.load.paths[0]) as map:
        map[0]
        ledger = ledgers.sample(model)
    assert ledger.file_bytes == SIZE
    # The worker's mapping is told apart from the probe's own only by the process: here both count.
    assert ledger.mapped_bytes == 2 * SIZE
    assert (ledger.weight_bytes, ledger.anonymous_bytes) == (5_000_000, 2_000_000)
    assert ledger.rss_bytes is not None and ledger.rss_bytes > SIZE
    ledgers.close()


def test_the_files_stay_open_as_long_as_the_model_is_loaded(model: LoadedModel) -> None:
    path = model.spec.load.paths[0]
    ledgers = Ledgers()
    ledgers.follow([model])
    ledgers.follow([model])
    ledgers.sample(model)
    ledgers.sample(model)
    assert fds_on(path) == 1
    ledgers.follow([])
    with pytest.raises(LedgerUnavailable, match="residency of m: it was unloaded"):
        ledgers.sample(model)
    ledgers.close()
    assert fds_on(path) == 0


def test_to_follow_does_not_wait_for_the_disk(model: LoadedModel) -> None:
    go_on = threading.Event()

    def slow(paths: Sequence[Path]) -> FileProbe:
        assert go_on.wait(5)
        return FileProbe(paths)

    ledgers = Ledgers(open_probe=slow)
    ledgers.follow([model])
    go_on.set()
    assert ledgers.sample(model).file_bytes == SIZE
    ledgers.close()


def test_an_unload_does_not_wait_for_a_sampling_which_keeps_its_files(model: LoadedModel) -> None:
    path = model.spec.load.paths[0]
    inside, go_on = threading.Event(), threading.Event()

    def slow(model: LoadedModel, probe: FileProbe) -> Ledger:
        inside.set()
        assert go_on.wait(5)
        raise ProcessGone("slow")

    ledgers = Ledgers(slow)
    ledgers.follow([model])
    errors: list[LedgerUnavailable] = []

    def scrape() -> None:
        with pytest.raises(LedgerUnavailable) as caught:
            ledgers.sample(model)
        errors.append(caught.value)

    thread = threading.Thread(target=scrape)
    thread.start()
    assert inside.wait(5)
    ledgers.close()
    assert fds_on(path) == 1
    go_on.set()
    thread.join()
    assert len(errors) == 1
    assert fds_on(path) == 0


@pytest.mark.parametrize("error", [ProcessGone("process 7 has ended"), OSError(errno.EIO, "I/O")])
def test_what_cannot_be_sampled_is_one_error_that_names_the_model(
    model: LoadedModel, error: Exception
) -> None:
    def broken(model: LoadedModel, probe: FileProbe) -> Ledger:
        raise error

    ledgers = Ledgers(broken)
    ledgers.follow([model])
    with pytest.raises(LedgerUnavailable, match="residency of m: ") as caught:
        ledgers.sample(model)
    assert str(error) in caught.value.message
    ledgers.close()


def test_files_that_cannot_be_opened_are_logged_once_and_told_at_each_sampling(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = loaded(tmp_path / "missing.gguf", os.getpid())
    ledgers = Ledgers()
    ledgers.follow([missing])
    ledgers.follow([missing])
    for _ in range(2):
        with pytest.raises(LedgerUnavailable, match=r"missing\.gguf"):
            ledgers.sample(missing)
    assert len(caplog.records) == 1
    ledgers.close()
