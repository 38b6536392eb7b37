"""The memory calls of libc that Python does not wrap, and advice on files that may be refused.

Advice and protection values come from the mmap module, which has each
platform's own. ctypes.CDLL drops the GIL around each call; a call that waits
for the disk stalls no other thread.
"""

from __future__ import annotations

import ctypes
import errno
import mmap as _mmap
import os
import sys
from contextlib import suppress
from typing import Literal

PAGE_BYTES = _mmap.PAGESIZE

MADV_NORMAL = _mmap.MADV_NORMAL
MADV_WILLNEED = _mmap.MADV_WILLNEED
MADV_RANDOM = _mmap.MADV_RANDOM
MADV_DONTNEED = _mmap.MADV_DONTNEED
# Linux only; every other system refuses the numbers. asm-generic/mman-common.h
MADV_HUGEPAGE = 14
MADV_NOHUGEPAGE = 15

# Where the mapping replaces what is at an address. asm-generic/mman-common.h; mmap.py lacks it.
_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value
# The same number on every Linux architecture but alpha. linux/scripts/syscall.tbl
_SYS_CACHESTAT = 451

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.munlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64]
_libc.pread.restype = ctypes.c_ssize_t
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_libc.fstatfs.argtypes = [ctypes.c_int, ctypes.c_void_p]
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.syscall.restype = ctypes.c_long


# struct statfs is 120 bytes on 64-bit Linux and begins with f_type, a long.
_STATFS_LONGS = 64


class _CachestatRange(ctypes.Structure):
    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


class _Cachestat(ctypes.Structure):
    _fields_ = (
        ("nr_cache", ctypes.c_uint64),
        ("nr_dirty", ctypes.c_uint64),
        ("nr_writeback", ctypes.c_uint64),
        ("nr_evicted", ctypes.c_uint64),
        ("nr_recently_evicted", ctypes.c_uint64),
    )


def _failed(call: str, address: int, length: int) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{call} of {length} bytes at {address:#x}: {os.strerror(code)}")


def mlock(address: int, length: int) -> None:
    """Bring the pages in and keep them in RAM. Page-aligned outward by the kernel."""
    if _libc.mlock(address, length):
        raise _failed("mlock", address, length)


def munlock(address: int, length: int) -> None:
    """Let the pages be evicted again; they stay where they are. Of unlocked ones too."""
    if _libc.munlock(address, length):
        raise _failed("munlock", address, length)


def madvise(address: int, length: int, advice: int) -> None:
    """Advise on pages; the address has to be page-aligned."""
    if _libc.madvise(address, length, advice):
        raise _failed(f"madvise({advice})", address, length)


def mincore(address: int, length: int) -> bytes:
    """One byte a page, its lowest bit set if the page is in RAM; the rest is undefined.

    Linux sets every bit for a caller who neither owns nor may write the file.
    """
    vector = ctypes.create_string_buffer(-(-length // PAGE_BYTES))
    if _libc.mincore(address, length, vector):
        raise _failed("mincore", address, length)
    return vector.raw


def mmap_file(fd: int, length: int) -> int:
    """Map a file from its start, shared and read-only; the address. No page is read."""
    address = _libc.mmap(None, length, _mmap.PROT_READ, _mmap.MAP_SHARED, fd, 0)
    if address == _MAP_FAILED:
        raise _failed("mmap", 0, length)
    return int(address)


def mmap_anonymous(address: int, length: int) -> None:
    """Replace what is mapped at page-aligned addresses by zeros of this process's own."""
    flags = _mmap.MAP_PRIVATE | _mmap.MAP_ANONYMOUS | _MAP_FIXED
    protection = _mmap.PROT_READ | _mmap.PROT_WRITE
    if _libc.mmap(address, length, protection, flags, -1, 0) == _MAP_FAILED:
        raise _failed("mmap", address, length)


def mprotect_read(address: int, length: int) -> None:
    """Make pages read-only."""
    if _libc.mprotect(address, length, _mmap.PROT_READ):
        raise _failed("mprotect", address, length)


def advise_huge(address: int, length: int) -> bool:
    """Ask for huge pages; False if this kernel has none. Linux only."""
    if not _libc.madvise(address, length, MADV_HUGEPAGE):
        return True
    if ctypes.get_errno() == errno.EINVAL:
        return False
    raise _failed("madvise", address, length)


def pread(fd: int, address: int, length: int, offset: int) -> int:
    """Read from a file to memory; how many bytes came, 0 at its end."""
    n = _libc.pread(fd, address, length, offset)
    if n < 0:
        raise _failed("pread", address, length)
    return int(n)


def fadvise(fd: int, end: int, advice: Literal["NORMAL", "RANDOM", "DONTNEED"]) -> None:
    """For the file's first bytes, all if end is 0; advice as POSIX names it. A hint: where system
    or filesystem have no such thing, or refuse it, nothing happens."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(fd, 0, end, getattr(os, f"POSIX_FADV_{advice}"))


def munmap(address: int, length: int) -> None:
    """Undo mmap_file."""
    if _libc.munmap(address, length):
        raise _failed("munmap", address, length)


def cachestat(fd: int, offset: int, length: int) -> int:
    """Pages of a file range that are in the page cache; a length of 0 is up to the end.

    Raises ENOSYS before Linux 6.5 and elsewhere. EPERM to a caller who neither
    owns nor may write the file since 6.14; older ones answer him truly.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, f"cachestat: {os.strerror(errno.ENOSYS)}")
    asked, counted = _CachestatRange(offset, length), _Cachestat()
    if _libc.syscall(
        ctypes.c_long(_SYS_CACHESTAT),
        ctypes.c_long(fd),
        ctypes.byref(asked),
        ctypes.byref(counted),
        ctypes.c_ulong(0),
    ):
        raise _failed("cachestat", offset, length)
    return int(counted.nr_cache)


def filesystem_magic(fd: int) -> int:
    """Which kind of filesystem a file lies on, as a number of linux/magic.h. Linux only."""
    answer = (ctypes.c_long * _STATFS_LONGS)()
    if _libc.fstatfs(fd, answer):
        code = ctypes.get_errno()
        raise OSError(code, f"fstatfs: {os.strerror(code)}")
    return int(answer[0])
