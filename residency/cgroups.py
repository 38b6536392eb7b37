"""Where this process stands in the cgroup trees, v1 and v2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """The folders of this process's cgroup for a controller, and of its parents up to the mount.

    Those of v2 come whatever the controller; they lack its files where v1 has it. In a
    container the path may be the host's and lie outside the mount: then only the mount
    itself is there, and it is the container's own group.
    """
    mount = root / "sys/fs/cgroup"
    for line in text(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            tops = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            tops = [mount / name for name in dict.fromkeys((controller, controllers))]
        else:
            continue
        for top in tops:
            group = top / path.lstrip("/")
            yield from (g for g in (group, *group.parents) if g.is_relative_to(top))


def text(path: Path) -> str:
    """What a file of the kernel says; empty if it is not there or may not be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
