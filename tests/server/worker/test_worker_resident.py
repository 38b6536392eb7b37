"""The resident mode in a real worker: the same bytes, nothing left in the page cache, and a
refusal where memory does not suffice."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from made_models import TINY, write_moe
from memory_groups import memory_group, needs_memory_cgroup
from page_files import MIB, drop_cache, root_only
from worker_process import WorkerProcess, load_message, loaded_worker, request, worker_process

from manifests.scan import scan
from residency.file_cache import FileProbe
from residency.ledger import Ledger, sample
from residency.libc import PAGE_BYTES
from residency.ranges import Range
from server.protocol import LoadFailed, PinReport, Ready

PROMPT = "1, 2, 3, 4,"


@pytest.fixture
def own_copy(smollm2: Path, tmp_path: Path) -> Path:
    """A cold copy that nothing else maps."""
    path = Path(shutil.copyfile(smollm2, tmp_path / "model.gguf"))
    drop_cache(path)
    return path


def ledger(worker: WorkerProcess, ready: Ready, *paths: Path) -> Ledger:
    copies = [Range(start, end) for start, end in ready.copies]
    with FileProbe(paths) as probe:
        return sample(worker.process.pid, paths, None, probe, copies=copies)


def memory_of(worker: WorkerProcess, run: tuple[int, int]) -> bytes:
    with Path(f"/proc/{worker.process.pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(run[0])
        return memory.read(run[1] - run[0])


def weight_pages(path: Path) -> bytes:
    """The file's bytes from the page of its first tensor on: all of its tensors, as they are
    written one behind the other."""
    first = min(tensor.offset for tensor in scan(path).tensors)
    return path.read_bytes()[first // PAGE_BYTES * PAGE_BYTES :]


def test_every_tensor_is_copied_as_it_is(own_copy: Path) -> None:
    expected = weight_pages(own_copy)
    with loaded_worker(own_copy, residency="resident") as (worker, ready):
        (run,) = ready.copies
        assert memory_of(worker, run)[: len(expected)] == expected
        assert ready.weights.file == 0
        assert 0 <= len(expected) - ready.weights.anonymous < 2 * PAGE_BYTES


def test_every_file_of_a_split_model_is_copied(smollm2: Path, tmp_path: Path) -> None:
    splits = write_moe(tmp_path / "split.gguf", smollm2, TINY, tensors_per_file=4)
    with loaded_worker(*splits) as (worker, mapped):
        text = worker.answer(request("r", "Once")).text
    with loaded_worker(*splits, residency="resident") as (worker, ready):
        assert worker.answer(request("r", "Once")).text == text
        copies = [memory_of(worker, run) for run in ready.copies]
        assert ready.weights.anonymous == mapped.weights.file
        assert all(before[1] <= after[0] for before, after in pairwise(ready.copies))
    assert len(splits) > 2
    for path in splits:  # whose copies may lie one behind the other
        assert sum(copy.count(weight_pages(path)) for copy in copies) == 1


def test_the_ledger_of_a_resident_model(own_copy: Path) -> None:
    with loaded_worker(own_copy, residency="resident") as (worker, ready):
        worker.answer(request("r", PROMPT, max_tokens=2))
        seen = ledger(worker, ready, own_copy)
        with FileProbe([own_copy]) as probe:
            assert probe.resident_bytes()[0] == 0, "nothing is left in the page cache"
        faults = worker.answer(request("s", "Elsewhere", max_tokens=2)).end.timings.major_faults
    weights = ready.weights.anonymous
    assert seen.mapped_bytes == seen.resident_bytes == seen.touched_bytes
    assert seen.mapped_bytes is not None
    assert 0 <= seen.mapped_bytes - weights < 2 * PAGE_BYTES
    assert seen.huge_anonymous_bytes == seen.huge_bytes
    assert seen.huge_bytes is not None
    assert seen.huge_bytes > 0.9 * weights
    assert (seen.locked_bytes, seen.probe) == (0, "smaps")
    assert faults == 0


@needs_memory_cgroup
def test_a_load_takes_little_more_than_what_it_keeps(own_copy: Path) -> None:
    with (
        memory_group("transient") as group,
        loaded_worker(own_copy, prefix=group.prefix, residency="resident") as (_, ready),
    ):
        kept, peak = group.number("usage_in_bytes"), group.number("max_usage_in_bytes")
    assert peak > ready.weights.anonymous
    assert peak - kept < 64 * MIB


WITHOUT_HUGE_PAGES = (
    "import ctypes, os, sys\n"
    "assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0\n"  # PR_SET_THP_DISABLE
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


def test_without_huge_pages_it_serves_and_says_so(
    own_copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prefix = [sys.executable, "-c", WITHOUT_HUGE_PAGES]
    with loaded_worker(own_copy, prefix=prefix, residency="resident") as (worker, ready):
        assert worker.answer(request("r", PROMPT, max_tokens=2)).end.reason == "length"
        seen = ledger(worker, ready, own_copy)
    assert (seen.huge_bytes, seen.touched_bytes) == (0, seen.mapped_bytes)
    log = capfd.readouterr().err
    assert re.search(r"WARNING worker.resident: 0 of \d{8} bytes .*PR_SET_THP_DISABLE", log)


def test_with_huge_pages_there_is_nothing_to_warn_of(
    own_copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with loaded_worker(own_copy, residency="resident"):
        pass
    assert "worker.resident" not in capfd.readouterr().err


UNREADABLE = (
    'mount --bind /dev/null /proc/meminfo && mount -t tmpfs none /sys/fs/cgroup && exec "$@"'
)


@root_only
def test_without_sources_the_check_is_skipped_and_the_log_says_so(
    own_copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prefix = ["unshare", "--mount", "--", "sh", "-c", UNREADABLE, "sh"]
    with loaded_worker(own_copy, prefix=prefix, residency="resident") as (_, ready):
        assert ready.weights.anonymous > 0
    assert "headroom unknown" in capfd.readouterr().err


# -- in a memory cgroup smaller than the model -----------------------------------------

ROOM = 90 * MIB
"""Less than the file's 98 MB; a worker without weights takes half of it."""


def load_in_group(
    prefix: Sequence[str], path: Path, mode: str
) -> tuple[Ready | LoadFailed, str, list[object]]:
    """What a load said, the text of a request if it serves, and what came beside."""
    with worker_process(prefix) as worker:
        worker.sock.settimeout(200)
        worker.send(load_message(path, residency=mode, n_slots=1))
        message = worker.receive()
        assert isinstance(message, Ready | LoadFailed)
        if isinstance(message, LoadFailed):
            return message, "", []
        text = worker.answer(request("r", PROMPT, max_tokens=2)).text
        return message, text, list(worker.others)


@needs_memory_cgroup
@pytest.mark.parametrize("mode", ["eager", "lazy", "pinned", "lazy_then_pin_resident"])
def test_a_mapped_mode_serves_where_the_weights_do_not_fit(own_copy: Path, mode: str) -> None:
    with memory_group("small", ROOM) as group:
        ready, text, others = load_in_group(group.prefix, own_copy, mode)
        assert isinstance(ready, Ready)
        assert ready.weights.file > ROOM
        assert text
        for report in others:
            assert isinstance(report, PinReport)
            assert report.bytes_locked == 0
            assert f"the memory limit of {group.path} binds" in report.message
        assert len(others) == (mode == "pinned")


@needs_memory_cgroup
def test_resident_is_refused_where_the_weights_do_not_fit(own_copy: Path) -> None:
    """With the figures that the load would have come to, and before it takes them."""
    with loaded_worker(own_copy, residency="resident", n_slots=1) as (_, ready):
        weights, kv = ready.weights.anonymous, ready.kv_bytes
    with memory_group("small", ROOM) as group:
        failed, _, _ = load_in_group(group.prefix, own_copy, "resident")
        peak = group.number("max_usage_in_bytes")
        assert isinstance(failed, LoadFailed)
        assert f"the memory limit of {group.path} binds" in failed.message
    numbers = re.search(
        r"needs (\d+) bytes of RAM \(weights (\d+), KV cache (\d+), compute (\d+)\) and (\d+) are",
        failed.message,
    )
    assert numbers is not None, failed.message
    need, *parts, room = map(int, numbers.groups())
    assert parts[:2] == [weights, kv]
    assert need == sum(parts) > room
    assert MIB < parts[2] < 100 * MIB
    assert "'eager' or 'lazy' would serve" in failed.message
    assert peak < ROOM - 10 * MIB
