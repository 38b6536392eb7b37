"""The cage of bench_residency: on the real kernel where root may, version 2 on a made tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from page_files import MIB, drop_cache, root_only, write_file

from bench.residency.cgroups import Cage, Limits, caged, disk_of, own_folders
from provision.failure import Failure

V1_MEMORY = "memory" in own_folders(Path("/proc/self"))
needs_v1 = pytest.mark.skipif(not V1_MEMORY, reason="needs cgroup v1's memory controller")
LIMIT = 64 * MIB


@root_only
@needs_v1
def test_what_runs_in_the_cage_is_bound_by_its_memory() -> None:
    hog = "b = bytearray(200 << 20); b[::4096] = b'x' * len(b[::4096])"
    with caged(Limits(memory_bytes=LIMIT)) as cage:
        folder = cage.folders["memory"]
        assert (folder / "memory.limit_in_bytes").read_text().strip() == str(LIMIT)
        command = [*cage.prefix(), sys.executable, "-c", hog]
        done = subprocess.run(command, check=False, timeout=60)
        assert done.returncode == -9, "the kernel ended it"
        assert subprocess.run([*cage.prefix(), "true"], check=False).returncode == 0
    assert not folder.exists()


@root_only
@needs_v1
def test_the_disk_is_slowed_for_what_is_in_the_cage(tmp_path: Path) -> None:
    file = write_file(tmp_path / "file", 4 * MIB)
    with caged(Limits(read_bps=MIB, disk=disk_of(file))) as cage:
        folder = cage.folders["blkio"]
        told = (folder / "blkio.throttle.read_bps_device").read_text().split()
        assert told == [disk_of(file), str(MIB)]
        drop_cache(file)
        subprocess.run(
            [*cage.prefix("blkio"), "cat", str(file)], stdout=subprocess.DEVNULL, check=True
        )
        # In this cgroup, so by the throttle: what it let through is counted.
        counted = (folder / "blkio.throttle.io_service_bytes").read_text().split()
        assert int(counted[counted.index("Read") + 1]) >= 4 * MIB
    assert not folder.exists()


@root_only
@needs_v1
def test_the_cage_goes_when_what_ran_in_it_failed() -> None:
    with pytest.raises(KeyError), caged(Limits(memory_bytes=LIMIT)) as cage:
        folder = cage.folders["memory"]
        raise KeyError
    assert not folder.exists()


def test_without_limits_there_is_no_cage() -> None:
    with caged(Limits()) as cage:
        assert cage.folders == {}
        assert cage.prefix() == ()


def test_a_command_is_put_into_each_cgroup_once(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        folder.mkdir()
    cage = Cage({"memory": a, "blkio": b})
    code = "import os, sys; print(os.getpid(), sys.argv[1:])"
    command = [*cage.prefix(), sys.executable, "-c", code, "a b", "--"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pid, _, words = printed.partition(" ")
    assert words == "['a b', '--']\n"
    assert [(folder / "cgroup.procs").read_text().strip() for folder in (a, b)] == [pid, pid]
    assert str(a) not in cage.prefix("blkio")
    assert len(Cage({"memory": a, "blkio": a}).prefix()) == len(cage.prefix("memory"))


# -- version 2, and containers, on made trees ----------------------------------------------

V2_MOUNT = "31 1 0:29 {root} {mount} rw - cgroup2 cgroup2 rw\n"


def made_proc(tmp_path: Path, cgroup: str, mounts: str) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text(mounts)
    return proc


def test_own_cgroups_are_found_below_their_mounts(tmp_path: Path) -> None:
    mounts = (
        "30 1 0:28 / /cg/memory rw - cgroup cgroup rw,memory\n"
        "32 1 0:30 /docker/x /cg/blkio rw shared:1 - cgroup cgroup rw,blkio\n"
        "33 1 0:31 /docker/y /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        + V2_MOUNT.format(root="/", mount="/cg/unified")
    )
    cgroup = "4:memory:/a/b\n7:blkio:/docker/x/c\n2:cpu,cpuacct:/\n0::/d\n"
    assert own_folders(made_proc(tmp_path, cgroup, mounts)) == {
        "memory": Path("/cg/memory/a/b"),
        "blkio": Path("/cg/blkio/c"),
        "cpu": Path("/cg/cpu"),
        "cpuacct": Path("/cg/cpu"),
        "": Path("/cg/unified/d"),
    }


def test_version_2_moves_this_process_aside_and_limits_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "cgroup.controllers").write_text("cpu io memory\n")
    proc = made_proc(tmp_path, "0::/\n", V2_MOUNT.format(root="/", mount=own))
    # The kernel removes a cgroup with the files it made in it.
    monkeypatch.setattr(Path, "rmdir", lambda path: [file.unlink() for file in path.iterdir()])
    with (
        pytest.raises(KeyboardInterrupt),
        caged(Limits(LIMIT, 10**8, "8:0"), proc) as cage,
    ):
        child = cage.folders["memory"]
        assert cage.folders["blkio"] == child
        assert (child / "memory.max").read_text() == str(LIMIT)
        assert (child / "io.max").read_text() == "8:0 rbps=100000000"
        assert (own / "cgroup.subtree_control").read_text() == "+memory +io"
        assert (own / f"{child.name}-self" / "cgroup.procs").read_text() == str(os.getpid())
        raise KeyboardInterrupt  # what is undone is undone then too
    assert (own / "cgroup.subtree_control").read_text() == "-memory -io"
    assert (own / "cgroup.procs").read_text() == str(os.getpid())
    assert list(child.iterdir()) == []


def test_controllers_that_are_not_there_are_told(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "cgroup.controllers").write_text("cpu\n")
    proc = made_proc(tmp_path, "0::/\n", V2_MOUNT.format(root="/", mount=own))
    with (
        pytest.raises(Failure, match="no cgroup here controls memory"),
        caged(Limits(memory_bytes=LIMIT), proc),
    ):
        pytest.fail("it is caged")


def test_a_partition_stands_for_its_disk(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    number = file.stat().st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    disk, blocks = tmp_path / "disk", tmp_path / "blocks"
    partition = disk / "part"
    partition.mkdir(parents=True)
    blocks.mkdir()
    (disk / "dev").write_text("8:0\n")
    (partition / "dev").write_text("8:1\n")
    (blocks / name).symlink_to(partition)
    assert disk_of(file, blocks) == "8:1", "a device mapper's disk has no partition file"
    (partition / "partition").touch()
    assert disk_of(file, blocks) == "8:0"
    with pytest.raises(Failure, match="no block device"):
        disk_of(file, tmp_path)
