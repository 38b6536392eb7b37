"""The ledger of a live worker tells its fields apart, and unknown from zero."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest
from page_files import (
    MIB,
    NOBODY,
    ROOT,
    as_user,
    drop_cache,
    forked,
    linux_only,
    mapped,
    read_range,
    root_only,
    touch,
    write_file,
)

from residency.file_cache import FileProbe, Source
from residency.ledger import Ledger, sample
from residency.procfs import ProcessGone, ProcFS
from residency.ranges import Range

pytestmark = linux_only

WORKER = """
import os, sys
from pathlib import Path
sys.path.insert(0, "tests")
from page_files import MIB, mapped, touch
from residency import libc
from residency.ranges import Range
with mapped(Path(sys.argv[1])) as all:
    libc.madvise(all.start, len(all), libc.MADV_RANDOM)
    libc.munmap(all.start, MIB)  # as llama.cpp does with the file's head
    touch(Range(all.start + 2 * MIB, all.start + 4 * MIB))
    libc.mlock(all.start + 3 * MIB, MIB)
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
"""


@contextmanager
def worker(path: Path) -> Iterator[int]:
    """A process that maps all but the first MiB, touches [2, 4) MiB and locks [3, 4)."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = write_file(tmp_path / "model", 8 * MIB)
    drop_cache(path)
    return path


def test_each_field_is_what_it_says(model: Path) -> None:
    with worker(model) as pid, FileProbe([model]) as probe:
        read_range(model, Range(0, 2 * MIB))  # another process; the first MiB is not mapped
        ledger = sample(pid, [model], 7 * MIB - 11, probe, anonymous_bytes=5)
        assert ledger.file_bytes == 8 * MIB
        assert ledger.weight_bytes == 7 * MIB - 11
        assert ledger.mapped_bytes == 7 * MIB
        assert ledger.resident_bytes == 3 * MIB
        assert ledger.touched_bytes == 2 * MIB
        assert ledger.locked_bytes == MIB
        assert ledger.anonymous_bytes == 5
        assert (ledger.huge_bytes, ledger.huge_anonymous_bytes) == (0, 0)
        assert ledger.rss_bytes is not None
        assert ledger.rss_bytes > 4 * MIB
        assert ledger.major_faults is not None
        assert ledger.major_faults > 0
        assert ledger.probe in (Source.CACHESTAT, Source.MINCORE)


def test_its_fields_are_those_of_the_contract() -> None:
    assert [field.name for field in fields(Ledger)] == [
        "file_bytes",
        "weight_bytes",
        "mapped_bytes",
        "resident_bytes",
        "touched_bytes",
        "anonymous_bytes",
        "huge_bytes",
        "huge_anonymous_bytes",
        "locked_bytes",
        "rss_bytes",
        "major_faults",
        "probe",
    ]


def test_the_files_of_a_split_model_add_up(tmp_path: Path, model: Path) -> None:
    second = write_file(tmp_path / "second", MIB)
    with worker(model) as pid, FileProbe([model, second]) as probe:
        ledger = sample(pid, [model, second], None, probe)
        assert ledger.file_bytes == 9 * MIB
        assert ledger.mapped_bytes == 7 * MIB
        assert ledger.weight_bytes is None


def test_the_worker_is_followed_when_its_file_is_replaced(tmp_path: Path, model: Path) -> None:
    with worker(model) as pid, FileProbe([model]) as probe:
        write_file(tmp_path / "new", MIB).replace(model)
        ledger = sample(pid, [model], None, probe)
        assert (ledger.mapped_bytes, ledger.touched_bytes) == (7 * MIB, 2 * MIB)
        assert ledger.file_bytes == 8 * MIB


def test_a_worker_that_ended_has_no_ledger(model: Path) -> None:
    with worker(model) as pid, FileProbe([model]) as probe:
        pass
    with FileProbe([model]) as probe, pytest.raises(ProcessGone, match=str(pid)):
        sample(pid, [model], None, probe)


def test_without_proc_what_it_tells_is_unknown_and_not_zero(model: Path, tmp_path: Path) -> None:
    nowhere = ProcFS(tmp_path / "nowhere")
    with FileProbe([model], nowhere) as probe:
        ledger = sample(os.getpid(), [model], 1, probe, nowhere)
    assert ledger == Ledger(
        file_bytes=8 * MIB,
        weight_bytes=1,
        mapped_bytes=None,
        resident_bytes=None,
        touched_bytes=None,
        anonymous_bytes=None,
        huge_bytes=None,
        huge_anonymous_bytes=None,
        locked_bytes=None,
        rss_bytes=None,
        major_faults=None,
        probe=Source.UNKNOWN,
    )


@root_only
def test_of_a_foreign_file_residency_is_known_only_when_all_of_it_is_touched() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = write_file(Path(folder) / "model", 16 * MIB)
        path.chmod(0o644)

        def ask() -> list[Ledger]:
            with mapped(path) as pages:
                half = Range(pages.start, pages.start + 8 * MIB)
                workers = [forked(lambda: touch(half)), forked(lambda: touch(pages))]
                with workers[0] as some, workers[1] as all_of_it, FileProbe([path]) as probe:
                    return [sample(pid, [path], None, probe) for pid in (some, all_of_it)]

        some, all_of_it = as_user(NOBODY, ask)
    assert (some.resident_bytes, some.probe) == (None, Source.UNKNOWN)
    assert some.mapped_bytes == 16 * MIB
    assert some.touched_bytes is not None
    assert 8 * MIB <= some.touched_bytes <= 10 * MIB
    assert (all_of_it.resident_bytes, all_of_it.probe) == (16 * MIB, Source.SMAPS)
