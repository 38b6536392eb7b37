"""The probe counts pages in RAM whoever read them, brings none in, and never guesses."""

import errno
import os
import re
import shutil
import subprocess
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_files import (
    MIB,
    NOBODY,
    OWN_MOUNTS,
    as_user,
    drop_cache,
    linux_only,
    mapped,
    python,
    read_range,
    root_only,
    write_file,
)

from residency import file_cache, libc
from residency.file_cache import FileProbe, Source
from residency.procfs import PROC, FileMapping
from residency.ranges import Range

pytestmark = linux_only
TRUE = (Source.CACHESTAT, Source.MINCORE)


@pytest.fixture(params=[None, errno.ENOSYS, errno.EPERM])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int | None]:
    """This kernel; one without cachestat; one whose seccomp filter refuses it."""

    def refuse(fd: int, offset: int, length: int) -> int:
        raise OSError(request.param, "cachestat")

    file_cache._cachestat_works.cache_clear()
    if request.param is not None:
        monkeypatch.setattr(libc, "cachestat", refuse)
    yield request.param
    file_cache._cachestat_works.cache_clear()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_it_follows_the_page_cache_and_brings_nothing_in(
    tmp_path: Path, kernel: int | None
) -> None:
    path = write_file(tmp_path / "file", 8 * MIB)
    with FileProbe([path]) as probe:
        full, source = probe.resident_bytes()
        assert full == 8 * MIB
        assert source is (Source.CACHESTAT if kernel is None else Source.MINCORE)
        drop_cache(path)
        assert [probe.resident_bytes()[0] for _ in range(3)] == [0, 0, 0]
        read_range(path, Range(2 * MIB, 5 * MIB))
        assert probe.resident_bytes()[0] == 3 * MIB
        assert all(m.rss_bytes == 0 for m in own_mappings(probe, path))


def own_mappings(probe: FileProbe, path: Path) -> list[FileMapping]:
    identity = probe.identity(path)
    assert identity is not None
    return PROC.smaps("self", {identity})


def test_only_the_extents_asked_for(tmp_path: Path, kernel: int | None) -> None:
    paths = [write_file(tmp_path / name, 4 * MIB) for name in ("a", "b")]
    drop_cache(paths[0])
    read_range(paths[0], Range(0, 2 * MIB))
    with FileProbe(paths) as probe:
        half = {paths[0]: [Range(MIB, 3 * MIB)]}
        assert probe.resident_bytes(half)[0] == MIB
        assert probe.resident_bytes({**half, paths[1]: [Range(5, 6)]})[0] == MIB + libc.PAGE_BYTES
        beyond = {paths[1]: [Range(4 * MIB - 1, 1 << 50)]}
        assert probe.resident_bytes(beyond)[0] == libc.PAGE_BYTES
        assert probe.resident_bytes({})[0] == 0


def test_it_agrees_with_vmtouch(tmp_path: Path) -> None:
    if shutil.which("vmtouch") is None:
        pytest.skip("vmtouch is not installed")
    path = write_file(tmp_path / "file", 9 * MIB + 123)
    drop_cache(path)
    read_range(path, Range(3 * MIB, 7 * MIB))
    read_range(path, Range(9 * MIB, 9 * MIB + 123))
    said = subprocess.run(["vmtouch", str(path)], capture_output=True, text=True, check=True)
    match = re.search(r"Resident Pages: (\d+)/", said.stdout)
    assert match is not None
    with FileProbe([path]) as probe:
        assert probe.resident_bytes()[0] == int(match[1]) * libc.PAGE_BYTES
        assert probe.resident_bytes()[0] == 4 * MIB + libc.PAGE_BYTES


@root_only
def test_a_foreign_file_is_unknown_and_never_full(open_folder: Path, kernel: int | None) -> None:
    path = write_file(open_folder / "file", MIB)
    path.chmod(0o644)
    drop_cache(path)

    def ask() -> tuple[int | None, Source]:
        with FileProbe([path]) as probe:
            return probe.resident_bytes()

    assert as_user(NOBODY, ask) == (None, Source.UNKNOWN)
    path.chmod(0o666)
    assert as_user(NOBODY, ask)[0] == 0
    path.chmod(0o644)
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o444)  # an owner need not be able to write
    assert as_user(NOBODY, ask)[0] == 0
    assert ask()[0] == 0


@root_only
def test_one_foreign_file_makes_the_sum_unknown(open_folder: Path) -> None:
    foreign, own = (write_file(open_folder / name, MIB) for name in ("foreign", "own"))
    foreign.chmod(0o644)
    os.chown(own, NOBODY, NOBODY)

    def ask() -> tuple[int | None, Source]:
        with FileProbe([own, foreign]) as probe:
            return probe.resident_bytes()

    assert as_user(NOBODY, ask) == (None, Source.UNKNOWN)


def test_a_file_cut_short_or_replaced_under_it(tmp_path: Path, kernel: int | None) -> None:
    path = write_file(tmp_path / "file", 4 * MIB)
    with FileProbe([path]) as probe:
        os.truncate(path, MIB)
        assert probe.resident_bytes()[0] == MIB
        assert probe.size(path) == MIB
        os.truncate(path, 0)
        assert probe.resident_bytes()[0] == 0
        before = probe.identity(path)
        write_file(tmp_path / "new", 2 * MIB).replace(path)
        assert probe.resident_bytes()[0] == 0
        assert probe.identity(path) == before


def test_an_empty_file_is_empty(tmp_path: Path, kernel: int | None) -> None:
    path = write_file(tmp_path / "file", 0)
    with FileProbe([path]) as probe:
        count, source = probe.resident_bytes()
        assert (count, source in TRUE) == (0, True)
        assert probe.identity(path) is None


def test_a_sparse_giant_is_probed_in_bounded_memory(tmp_path: Path, kernel: int | None) -> None:
    """8 GB; mincore's whole vector would be 2 MiB."""
    path = tmp_path / "giant"
    with path.open("wb") as file:
        file.truncate(8 << 30)
    with FileProbe([path]) as probe:
        tracemalloc.start()
        count, _ = probe.resident_bytes()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert count == 0
    assert peak < MIB


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_missing_file_is_named_and_leaves_nothing_open(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", MIB)
    before = open_files()
    with pytest.raises(FileNotFoundError, match="missing"):
        FileProbe([path, tmp_path / "missing"])
    assert open_files() == before
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_closing_unmaps_and_closes(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", MIB)
    before = open_files()
    with FileProbe([path]):
        assert str(path) in Path("/proc/self/maps").read_text()
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert open_files() == before


def test_pages_that_another_mapping_has_locked_count_too(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", MIB)
    with mapped(path) as pages, FileProbe([path]) as probe:
        libc.mlock(pages.start, len(pages))
        assert probe.resident_bytes()[0] == MIB


ON_OVERLAY = """
import subprocess, sys
from pathlib import Path
sys.path.insert(0, "tests")
from page_files import MIB, drop_cache, forked, mapped, read_range, touch
from residency.file_cache import FileProbe
from residency.ledger import sample
from residency.ranges import Range
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "none", folder / "rw"], check=True)
for name in ("upper", "work"):
    (folder / "rw" / name).mkdir()
layers = f"lowerdir={folder}/lower,upperdir={folder}/rw/upper,workdir={folder}/rw/work"
subprocess.run(["mount", "-t", "overlay", "o", "-o", layers, folder / "merged"], check=True)
path = folder / "merged" / "model"
drop_cache(path)
read_range(path, Range(0, 3 * MIB))
with mapped(path) as pages:
    part = Range(pages.start, pages.start + 2 * MIB)
    with forked(lambda: touch(part)) as pid, FileProbe([path]) as probe:
        print(*probe.resident_bytes())
        ledger = sample(pid, [path], None, probe)
        print(ledger.mapped_bytes, ledger.touched_bytes)
"""


@root_only
def test_on_overlayfs_where_cachestat_and_stat_mislead(open_folder: Path) -> None:
    """As in a container image: cachestat says 0, and stat names another device than maps."""
    if subprocess.run([*OWN_MOUNTS, "true"], check=False, capture_output=True).returncode:
        pytest.skip("root may not mount here")
    for name in ("lower", "rw", "merged"):
        (open_folder / name).mkdir()
    write_file(open_folder / "lower" / "model", 8 * MIB)
    said = python(ON_OVERLAY, str(open_folder), under=OWN_MOUNTS)
    assert said.split() == [str(3 * MIB), "mincore", str(8 * MIB), str(2 * MIB)]
