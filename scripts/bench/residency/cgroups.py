"""A cage for the daemon: child cgroups of our own with a memory limit and a slowed disk.

Version 1 where the controller has a hierarchy of its own, else version 2, which wants
this process out of the way first: a cgroup with processes cannot limit its children.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from provision.failure import Failure

_NAMES_V2 = {"memory": "memory", "blkio": "io"}
# The kernel lets go of a cgroup some time after its last process has ended.
_REMOVE_SECONDS = 10.0
_JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done; shift; '


@dataclass(frozen=True)
class Limits:
    memory_bytes: int | None = None
    read_bps: int | None = None
    """Bytes a second."""
    disk: str = ""
    """What read_bps is of, as major:minor of a whole disk."""

    def v1(self) -> dict[str, tuple[str, str]]:
        """File and content by controller."""
        found = {}
        if self.memory_bytes is not None:
            found["memory"] = ("memory.limit_in_bytes", str(self.memory_bytes))
        if self.read_bps is not None:
            line = f"{self.disk} {self.read_bps}"
            found["blkio"] = ("blkio.throttle.read_bps_device", line)
        return found

    def v2(self) -> dict[str, tuple[str, str]]:
        found = {}
        if self.memory_bytes is not None:
            found["memory"] = ("memory.max", str(self.memory_bytes))
        if self.read_bps is not None:
            found["blkio"] = ("io.max", f"{self.disk} rbps={self.read_bps}")
        return found


@dataclass(frozen=True)
class Cage:
    """The cgroups to join, by controller; version 2 has one for all."""

    folders: Mapping[str, Path]

    def prefix(self, *controllers: str) -> tuple[str, ...]:
        """Words before a command that put it in; of all controllers if none is named."""
        wanted = controllers or tuple(self.folders)
        folders = sorted({str(self.folders[name]) for name in wanted if name in self.folders})
        return ("sh", "-c", f'{_JOIN}exec "$@"', "sh", *folders, "--") if folders else ()


def disk_of(path: Path, blocks: Path = Path("/sys/dev/block")) -> str:
    """The whole disk of a file as major:minor: a partition cannot be slowed. Raises Failure."""
    number = path.stat().st_dev
    entry = blocks / f"{os.major(number)}:{os.minor(number)}"
    if not entry.exists():
        raise Failure(
            f"{path} lies on no block device that could be slowed (device {entry.name}): "
            "set CORRAL_CACHE to a folder on a disk"
        )
    entry = entry.resolve()
    if (entry / "partition").exists():
        entry = entry.parent
    return (entry / "dev").read_text().strip()


@contextmanager
def caged(limits: Limits, proc: Path = Path("/proc/self")) -> Iterator[Cage]:
    """Removes what it made. No process may be in it any more then. Raises Failure."""
    own = own_folders(proc)
    folders: dict[str, Path] = {}
    with ExitStack() as stack:
        for controller, (file, text) in limits.v1().items():
            if controller in own:
                folders[controller] = stack.enter_context(_child(own[controller]))
                _write(folders[controller] / file, text)
        rest = {name: v for name, v in limits.v2().items() if name not in folders}
        if rest:
            parent = own.get("")
            names = [_NAMES_V2[name] for name in rest]
            if parent is None or not _offers(parent, names):
                raise Failure(f"no cgroup here controls {' and '.join(names)}")
            stack.enter_context(_delegating(parent, names))
            child = stack.enter_context(_child(parent))
            for controller, (file, text) in rest.items():
                _write(child / file, text)
                folders[controller] = child
        yield Cage(folders)


def own_folders(proc: Path) -> dict[str, Path]:
    """The cgroups of a process by version 1's controller; that of version 2 by the empty name."""
    own = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found = {}
    for line in (proc / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split(None, 2)
        names = {"cgroup": options.split(","), "cgroup2": [""]}.get(kind, [])
        for name in names:
            if name in own:
                found[name] = _below(Path(mount), root, own[name])
    return found


def _below(mount: Path, root: str, path: str) -> Path:
    """A container may see its cgroup as the root of the mount, and not under its path."""
    inside = Path(path)
    return mount / inside.relative_to(root) if inside.is_relative_to(root) else mount


def _offers(folder: Path, names: Sequence[str]) -> bool:
    offered = folder / "cgroup.controllers"
    return offered.exists() and set(names) <= set(offered.read_text().split())


@contextmanager
def _delegating(parent: Path, names: Sequence[str]) -> Iterator[None]:
    """This process waits in a child meanwhile; nobody else may be in the parent."""
    pid, control = str(os.getpid()), parent / "cgroup.subtree_control"
    with _child(parent, "-self") as waiting:
        _write(waiting / "cgroup.procs", pid)
        try:
            remedy = "; run it alone in a cgroup: systemd-run --scope -p Delegate=yes COMMAND"
            _write(control, " ".join(f"+{name}" for name in names), remedy)
            try:
                yield
            finally:
                # Before this process comes back: a cgroup with limited children takes none.
                _write(control, " ".join(f"-{name}" for name in names))
        finally:
            _write(parent / "cgroup.procs", pid)


@contextmanager
def _child(parent: Path, suffix: str = "") -> Iterator[Path]:
    folder = parent / f"corral-bench-{os.getpid()}{suffix}"
    try:
        folder.mkdir()
    except OSError as error:
        raise Failure(f"{folder}: {error.strerror}; limits need root, or a cgroup of yours") from (
            error
        )
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _REMOVE_SECONDS
    while True:
        try:
            folder.rmdir()
        except OSError as error:
            if time.monotonic() > deadline:
                raise Failure(f"{folder} could not be removed: {error.strerror}") from error
            time.sleep(0.05)
        else:
            return


def _write(path: Path, text: str, remedy: str = "") -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise Failure(f"{path} did not take {text!r}: {error.strerror}{remedy}") from error
