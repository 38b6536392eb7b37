"""Locks end up as they were asked, whatever was locked before, and tell what the kernel counts."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_files import (
    MIB,
    WITHOUT_IPC_LOCK,
    drops_rights,
    linux_only,
    mapped,
    python,
    root_only,
    write_file,
)

from residency import libc
from residency.libc import PAGE_BYTES
from residency.locks import Locks
from residency.pin import PinResult
from residency.procfs import PROC, ProcFS
from residency.ranges import Range

pytestmark = linux_only


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[Range]:
    with mapped(write_file(tmp_path / "file", 64 * MIB)) as whole:
        yield whole


def part(weights: Range, first: int, last: int) -> Range:
    """In MiB from the start."""
    return Range(weights.start + first * MIB, weights.start + last * MIB)


def done(steps: Iterator[PinResult | None]) -> PinResult:
    *_, result = steps
    assert result is not None
    return result


def locked_bytes() -> int:
    return PROC.status("self").locked_bytes


def locked_parts(weights: Range) -> list[Range]:
    """MiB from the start of the mappings that smaps calls locked."""
    file = PROC.file_at("self", weights.start)
    assert file is not None
    return [
        Range((m.addresses.start - weights.start) // MIB, (m.addresses.end - weights.start) // MIB)
        for m in PROC.smaps("self", [file])
        if m.mlocked
    ]


def test_a_change_unlocks_what_is_not_wanted_and_locks_what_is(weights: Range) -> None:
    locks = Locks([weights])
    whole = done(locks.change_to([weights]))
    assert (whole.bytes_asked, whole.bytes_locked, whole.message) == (64 * MIB, 64 * MIB, "")
    result = done(locks.change_to([part(weights, 8, 10), part(weights, 30, 40)]))
    assert (result.bytes_asked, result.bytes_locked, result.n_runs) == (12 * MIB, 12 * MIB, 2)
    assert locked_parts(weights) == [Range(8, 10), Range(30, 40)]
    result = done(locks.change_to([part(weights, 35, 64)]))
    assert result.bytes_locked == locked_bytes() == 29 * MIB
    assert done(locks.change_to([])).bytes_asked == locked_bytes() == 0


def test_locks_of_others_before_it_are_counted_and_undone(weights: Range) -> None:
    """As llama.cpp's own, which it takes while it loads."""
    done(Locks([weights]).change_to([weights]))
    assert done(Locks([weights]).change_to([weights])).bytes_locked == 64 * MIB
    done(Locks([weights]).change_to([part(weights, 1, 2)]))
    assert locked_bytes() == MIB


def test_what_llama_cpp_locked_between_the_weights_is_unlocked_too(weights: Range) -> None:
    ours = [part(weights, 1, 2), part(weights, 8, 9)]
    libc.mlock(weights.start + MIB, 8 * MIB)
    locks = Locks(ours)
    assert done(locks.change_to(ours[:1])).bytes_locked == locked_bytes() == MIB


def test_growing_locks_only_what_is_new(weights: Range) -> None:
    locks = Locks([weights])
    done(locks.extend_to([part(weights, 0, 40)]))
    steps = list(locks.extend_to([part(weights, 0, 48)]))
    assert len(steps) == 1, "one slice of 8 MiB"
    assert steps[0] is not None
    assert (steps[0].bytes_asked, steps[0].bytes_locked) == (48 * MIB, 48 * MIB)


def test_a_change_that_is_left_half_way_hinders_none_after_it(weights: Range) -> None:
    locks = Locks([weights])
    half = locks.change_to([weights])
    assert [next(half) for _ in range(3)] == [None] * 3
    assert locked_bytes() == 24 * MIB
    assert done(locks.change_to([part(weights, 20, 64)])).bytes_locked == 44 * MIB
    assert locked_parts(weights) == [Range(20, 64)]


def test_a_lock_that_the_kernel_does_not_count_is_a_shortfall(
    weights: Range, tmp_path: Path
) -> None:
    made = tmp_path / "proc" / "self"
    made.mkdir(parents=True)
    (made / "status").write_text("VmRSS: 1 kB\nVmLck: 0 kB\nCapEff: 0\n")
    result = done(Locks([weights], ProcFS(tmp_path / "proc")).change_to([part(weights, 0, 1)]))
    assert (result.bytes_asked, result.bytes_locked, result.errno) == (MIB, 0, 0)
    assert f"locked 0 of {MIB} bytes: mlock succeeded without effect" in result.message


UNDER_A_LIMIT = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, "tests")
from page_files import MIB, mapped
from residency.locks import Locks
from residency.procfs import PROC
from residency.ranges import Range
resource.setrlimit(resource.RLIMIT_MEMLOCK, (5 * MIB, 5 * MIB))
with mapped(Path(sys.argv[1])) as weights:
    locks = Locks([weights])
    *_, refused = locks.change_to(
        Range(weights.start + at * MIB, weights.start + (at + 2) * MIB) for at in (0, 4, 8)
    )
    *_, smaller = locks.change_to([Range(weights.start, weights.start + MIB)])
    counted = PROC.status("self").locked_bytes
    *_, none = locks.change_to([])
    print(json.dumps([refused.errno, refused.bytes_locked, smaller.message, counted,
                      none.message, PROC.status("self").locked_bytes]))
"""


@drops_rights
def test_what_a_limit_stopped_half_way_can_be_undone(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", 64 * MIB)
    answer = json.loads(python(UNDER_A_LIMIT, str(path), under=WITHOUT_IPC_LOCK))
    assert answer == [errno.ENOMEM, 4 * MIB, "", MIB, "", 0]


OUT_OF_MAPPINGS = """
import os, sys
from pathlib import Path
sys.path.insert(0, "tests")
from page_files import mapped
from residency import libc
from residency.locks import Locks
from residency.ranges import Range
filler = os.open(sys.argv[1], os.O_RDONLY)
with mapped(Path(sys.argv[1])) as weights:
    locks = Locks([weights])
    *_, whole = locks.change_to([weights])
    try:
        while True:  # mappings of one file at one offset never merge
            libc.mmap_file(filler, libc.PAGE_BYTES)
    except OSError:
        pass
    middle = Range(weights.start + libc.PAGE_BYTES, weights.start + 2 * libc.PAGE_BYTES)
    *_, result = locks.change_to([middle])
    print(result.bytes_asked, result.bytes_locked, result.message)
"""


@root_only
def test_out_of_mappings_what_stays_locked_is_told(tmp_path: Path) -> None:
    """To unlock one end of a mapping splits it."""
    if PROC.max_mappings() > 300_000:
        pytest.skip(f"vm.max_map_count is {PROC.max_mappings()}: too many to use up in a test")
    told = python(OUT_OF_MAPPINGS, str(write_file(tmp_path / "file", MIB)))
    asked, locked, message = told.split(" ", 2)
    assert (int(asked), int(locked)) == (PAGE_BYTES, MIB)
    assert f"{MIB} bytes are locked still, of which {PAGE_BYTES} should be: ENOMEM" in message
    assert f"vm.max_map_count={PROC.max_mappings()}" in message
