"""A call that fails names itself, the range and the reason."""

import errno
from pathlib import Path

import pytest
from page_files import MIB, mapped, write_file

from residency import libc


def test_a_failure_names_call_length_and_errno(tmp_path: Path) -> None:
    with mapped(write_file(tmp_path / "file", MIB)) as pages:
        pass
    for name, call in (
        ("mlock", lambda: libc.mlock(pages.start, MIB)),
        ("madvise", lambda: libc.madvise(pages.start, MIB, libc.MADV_RANDOM)),
        ("mincore", lambda: libc.mincore(pages.start, MIB)),
    ):
        with pytest.raises(OSError, match=rf"{name}.* of 1048576 bytes at 0x") as caught:
            call()
        assert caught.value.errno == errno.ENOMEM


def test_mapping_what_cannot_be_mapped_fails(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="mmap of 4096 bytes") as caught:
        libc.mmap_file(-1, 4096)
    assert caught.value.errno == errno.EBADF


def test_cachestat_of_a_closed_file_fails() -> None:
    with pytest.raises(OSError, match="cachestat") as caught:
        libc.cachestat(-1, 0, 0)
    assert caught.value.errno in (errno.EBADF, errno.ENOSYS)


def test_advice_on_a_file_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    libc.fadvise(-1, 0, "DONTNEED")
    monkeypatch.delattr("os.posix_fadvise")
    libc.fadvise(-1, 0, "DONTNEED")
