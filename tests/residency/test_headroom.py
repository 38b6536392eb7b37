"""What may still be allocated, on fixture trees of v1 and v2, and in a real group of v1."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_groups import memory_group, needs_memory_cgroup
from page_files import MIB, drop_cache, needs_lock, python, write_file

from residency.headroom import Headroom, headroom

MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 4000 kB"}
KIB = 1024
V2 = MEMINFO | {"proc/self/cgroup": "0::/a/b"}
V1 = MEMINFO | {"proc/self/cgroup": "9:cpu:/x\n4:memory:/docker/x\n0::/"}
NO_LIMIT_V1 = "9223372036854771712"
G2 = "sys/fs/cgroup/a/b"
G1 = "sys/fs/cgroup/memory/docker/x"
STAT = "anon 1\nfile 99\ninactive_file {}\nactive_file {}\nunevictable 70000"


def v2_group(path: str, limit: str, used: int, stat: str = STAT.format(0, 0)) -> dict[str, str]:
    return {
        f"{path}/memory.max": limit,
        f"{path}/memory.current": str(used),
        f"{path}/memory.stat": stat,
    }


def v1_group(
    path: str, limit: str, used: int, inactive: int = 0, active: int = 0
) -> dict[str, str]:
    # Those without "total_" leave out the groups below; the usage does not.
    stat = f"inactive_file 1\nactive_file 1\ntotal_inactive_file {inactive}"
    return {
        f"{path}/memory.limit_in_bytes": limit,
        f"{path}/memory.usage_in_bytes": str(used),
        f"{path}/memory.stat": f"{stat}\ntotal_active_file {active}\ntotal_unevictable 70000",
    }


CASES = {
    "no group": (MEMINFO, Headroom(4000 * KIB, "host")),
    "v2, its limit less what cannot be reclaimed": (
        V2 | v2_group(G2, "1000000", 700_000, STAT.format(100_000, 50_000)),
        Headroom(450_000, f"/{G2}"),
    ),
    "v2, no limit": (V2 | v2_group(G2, "max", 700_000), Headroom(4000 * KIB, "host")),
    "v2, the parent binds": (
        V2 | v2_group(G2, "3000000", 700_000) | v2_group("sys/fs/cgroup/a", "1000000", 900_000),
        Headroom(100_000, "/sys/fs/cgroup/a"),
    ),
    "v2, the host binds": (
        V2 | v2_group(G2, "9000000", 700_000),
        Headroom(4000 * KIB, "host"),
    ),
    "v2, high binds below max": (
        V2 | v2_group(G2, "1000000", 700_000) | {f"{G2}/memory.high": "800000"},
        Headroom(100_000, f"/{G2}"),
    ),
    "v2, high without max": (
        V2 | v2_group(G2, "max", 700_000) | {f"{G2}/memory.high": "800000"},
        Headroom(100_000, f"/{G2}"),
    ),
    "v2, over its limit": (V2 | v2_group(G2, "1000", 700_000), Headroom(0, f"/{G2}")),
    "v2, the path lies outside the mount": (
        V2 | v2_group("sys/fs/cgroup", "1000000", 300_000),
        Headroom(700_000, "/sys/fs/cgroup"),
    ),
    "v2, beside a v1 tree": (
        V2 | v2_group("sys/fs/cgroup/unified/a", "1000000", 300_000),
        Headroom(700_000, "/sys/fs/cgroup/unified/a"),
    ),
    "v1, its limit less what cannot be reclaimed": (
        V1 | v1_group(G1, "1000000", 700_000, 100_000, 50_000),
        Headroom(450_000, f"/{G1}"),
    ),
    "v1, no limit": (V1 | v1_group(G1, NO_LIMIT_V1, 700_000), Headroom(4000 * KIB, "host")),
    "v1, the parent binds": (
        V1
        | v1_group(G1, NO_LIMIT_V1, 700_000)
        | v1_group("sys/fs/cgroup/memory/docker", "1000000", 900_000),
        Headroom(100_000, "/sys/fs/cgroup/memory/docker"),
    ),
    "v1, the path lies outside the mount": (
        V1 | v1_group("sys/fs/cgroup/memory", "1000000", 300_000),
        Headroom(700_000, "/sys/fs/cgroup/memory"),
    ),
    "a group's limit without its usage does not count": (
        V2 | {f"{G2}/memory.max": "1000"},
        Headroom(4000 * KIB, "host"),
    ),
    "a group alone": (
        {"proc/self/cgroup": "0::/a/b"} | v2_group(G2, "1000000", 700_000),
        Headroom(300_000, f"/{G2}"),
    ),
    "nothing there": ({}, None),
    "nothing that is a number": ({"proc/meminfo": "MemAvailable: lots"}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_least_of_all_levels_counts(case: str, tmp_path: Path) -> None:
    files, expected = CASES[case]
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert headroom(tmp_path) == expected


ASK = """
import mmap, sys
from residency.headroom import headroom
def ask():
    room = headroom()
    print(room.bytes, room.binds)
ask()
held = mmap.mmap(-1, 16 << 20)
held.write(bytes(16 << 20))
ask()
file = open(sys.argv[1], "rb", buffering=0)
file.read()
ask()
{}
ask()
"""
LOCK = """
from residency import libc
address = libc.mmap_file(file.fileno(), 32 << 20)
libc.mlock(address, 32 << 20)
"""


@needs_memory_cgroup
@needs_lock
def test_in_a_real_group_cache_can_be_reclaimed_and_held_or_locked_memory_not(
    tmp_path: Path,
) -> None:
    path = write_file(tmp_path / "file", 32 * MIB)
    drop_cache(path)  # so that the group is charged for reading it
    with memory_group("headroom", 256 * MIB) as group:
        printed = python(ASK.format(LOCK), str(path), under=group.prefix).splitlines()
        rooms = [int(line.split()[0]) for line in printed]
        assert {line.split()[1] for line in printed} == {str(group.path)}
    empty, holding, cached, locked = rooms
    slack = 4 * MIB
    assert 200 * MIB < empty < 256 * MIB
    assert abs(empty - holding - 16 * MIB) < slack
    assert abs(holding - cached) < slack
    assert abs(cached - locked - 32 * MIB) < slack
