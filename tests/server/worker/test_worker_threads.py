"""CPU quotas of cgroup trees, on fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.worker.threads import bounded_threads, cpu_quota, threads_within


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


V2 = {"proc/self/cgroup": "0::/a/b"}
V1 = {"proc/self/cgroup": "12:memory:/\n4:cpu,cpuacct:/docker/x\n0::/"}
CASES = {
    "v2 own": (V2 | {"sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5),
    "v2 parent is tighter": (
        V2
        | {
            "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
            "sys/fs/cgroup/a/cpu.max": "50000 25000",
        },
        2.0,
    ),
    "v2 no limit": (V2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None),
    "v2 path outside the mount": (V2 | {"sys/fs/cgroup/cpu.max": "300000 100000"}, 3.0),
    "v1 own": (
        V1
        | {
            "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "250000",
            "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000",
        },
        2.5,
    ),
    "v1 parent, mounted as cpu": (
        V1
        | {
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us": "100000",
            "sys/fs/cgroup/cpu/docker/cpu.cfs_period_us": "100000",
        },
        1.0,
    ),
    "nothing there": ({}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_tightest_quota_counts(case: str, tmp_path: Path) -> None:
    files, quota = CASES[case]
    assert cpu_quota(write(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("cpus", "quota", "threads"), [(8, None, 8), (8, 2.5, 2), (2, 16.0, 2), (8, 0.3, 1)]
)
def test_threads(cpus: int, quota: float | None, threads: int) -> None:
    assert threads_within(cpus, quota) == threads


def test_far_more_threads_than_cpus_are_cut_down(caplog: pytest.LogCaptureFixture) -> None:
    assert [bounded_threads(asked, 2) for asked in (1, 3, 8)] == [1, 3, 8]
    assert caplog.records == []
    assert bounded_threads(512, 2) == 8
    assert caplog.messages == ["n_threads 512 is cut down to 8: 2 CPUs may be used"]
