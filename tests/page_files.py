"""Files in a known state of the page cache, and processes of known rights, for these tests."""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from residency import libc
from residency.memlock import lock_limits
from residency.procfs import PROC
from residency.ranges import Range

MIB = 1 << 20
NOBODY = 65534
_PR_SET_DUMPABLE = 4
ROOT = Path(__file__).parents[1]

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change user or rights")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")


def _may_lock() -> bool:
    limits = lock_limits(PROC)
    return limits is not None and limits.memlock_bytes is None


needs_lock = pytest.mark.skipif(
    not _may_lock(), reason="needs CAP_IPC_LOCK, or no RLIMIT_MEMLOCK, to lock a whole model"
)
drops_rights = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv"
)

T = TypeVar("T")


def write_file(path: Path, n_bytes: int) -> Path:
    """A file on the disk that is wholly in the page cache."""
    with path.open("wb") as file:
        file.write(b"\xa5" * n_bytes)
        file.flush()
        os.fsync(file.fileno())
    return path


def read_range(path: Path, part: Range) -> None:
    """Bring a part of a file into the page cache, and no read-ahead behind it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for offset in range(part.start, part.end, MIB):
            os.pread(fd, min(MIB, part.end - offset), offset)
    finally:
        os.close(fd)


def drop_cache(path: Path) -> None:
    """Empty the page cache of a file that nobody maps; skips where that is impossible."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        for _ in range(100):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not _cached(fd):
                return
            time.sleep(0.01)  # a read under way keeps its pages
    finally:
        os.close(fd)
    pytest.skip(f"the filesystem of {path} keeps its pages in RAM")


def _cached(fd: int) -> bool:
    length = os.fstat(fd).st_size
    address = libc.mmap_file(fd, length)
    try:
        return any(byte & 1 for byte in libc.mincore(address, length))
    finally:
        libc.munmap(address, length)


@contextmanager
def mapped(path: Path) -> Iterator[Range]:
    """The addresses of a shared mapping of the whole file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        length = os.fstat(fd).st_size
        address = libc.mmap_file(fd, length)
    finally:
        os.close(fd)
    try:
        yield Range(address, address + length)
    finally:
        libc.munmap(address, length)


def touch(pages: Range) -> None:
    for address in range(pages.start, pages.end, libc.PAGE_BYTES):
        ctypes.string_at(address, 1)


@contextmanager
def forked(function: Callable[[], object]) -> Iterator[int]:
    """A child process that has called the function, kept until the end of the block."""
    read_end, write_end = os.pipe()
    done, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(write_end)
            function()
            os.write(tell, b"done")
            os.read(read_end, 1)
        finally:
            _leave()
    os.close(tell)
    try:
        assert os.read(done, 4) == b"done", "the child failed: see its stderr"
        yield pid
    finally:
        for fd in (read_end, write_end, done):
            os.close(fd)
        os.waitpid(pid, 0)


def _leave() -> NoReturn:
    """End a forked child, with its traceback if it has one."""
    if sys.exc_info()[0]:
        traceback.print_exc()
    os._exit(0)


def as_user(uid: int, function: Callable[[], T]) -> T:
    """What the function returns in a forked child that has become this user."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            # As after an exec: its /proc entries are its own again.
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
            os.write(write_end, pickle.dumps(function()))
        finally:
            _leave()
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        data = answer.read()
    os.waitpid(pid, 0)
    assert data, "the child failed: see its stderr"
    return pickle.loads(data)  # type: ignore[no-any-return]


WITHOUT_IPC_LOCK = ("setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "--")
OWN_MOUNTS = ("unshare", "--mount", "--")


def python(code: str, *arguments: str, under: Sequence[str] = ()) -> str:
    """What a fresh interpreter prints that runs the code, started by another command."""
    done = subprocess.run(
        [*under, sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def flagged_bytes(pid: int, path: Path, flag: str) -> int:
    """Of a process's mappings of the file those with a VmFlag: `rr` is RANDOM, `lo` locked."""
    found, size = 0, 0
    ours = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not line[:1].isupper():
            ours = words[-1] == str(path)
            start, end = (int(word, 16) for word in words[0].split("-"))
            size = end - start
        elif ours and words[0] == "VmFlags:" and flag in words:
            found += size
    return found


# The same numbers on every Linux architecture but alpha. linux/scripts/syscall.tbl
_SYS_PROCESS_MADVISE = 440
_MADV_PAGEOUT = 21


def page_out(pid: int, path: Path) -> None:
    """Evicts what a process maps of a file, which nobody else may map, even from its cache.
    Needs root."""
    libc_calls = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if not line.endswith(str(path)):
                continue
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            vector = (ctypes.c_size_t * 2)(start, end - start)
            done = libc_calls.syscall(
                ctypes.c_long(_SYS_PROCESS_MADVISE),
                ctypes.c_long(pidfd),
                ctypes.byref(vector),
                ctypes.c_ulong(1),
                ctypes.c_long(_MADV_PAGEOUT),
                ctypes.c_ulong(0),
            )
            assert done > 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(pidfd)
