"""Changes of files: what is on disk before what, and who may hold a lock."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manifests.durable import locked, make_folders, remove_file, try_locked, write_file


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The changes made to the disk, in order."""
    made: list[str] = []

    def recorded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def record(*args: Any, **kwargs: Any) -> Any:
            if name == "fsync":
                folder = stat.S_ISDIR(os.fstat(args[0]).st_mode)
                made.append(f"fsync {'folder' if folder else 'file'}")
            else:
                made.append(name)
            return call(*args, **kwargs)

        return record

    for name in ("fsync", "replace", "mkdir"):
        monkeypatch.setattr(os, name, recorded(name, getattr(os, name)))
    return made


def test_content_is_on_disk_before_its_name_and_its_name_before_the_answer(
    tmp_path: Path, calls: list[str]
) -> None:
    write_file(tmp_path / "x", b"new")
    assert calls == ["fsync file", "replace", "fsync folder"]
    assert (tmp_path / "x").read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_each_new_folder_is_on_disk_before_the_next(tmp_path: Path, calls: list[str]) -> None:
    make_folders(tmp_path / "a" / "b")
    make_folders(tmp_path / "a" / "b")
    assert calls == ["mkdir", "fsync folder", "mkdir", "fsync folder"]


def test_a_removal_is_on_disk(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "x").touch()
    remove_file(tmp_path / "x")
    assert calls == ["fsync folder"]
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path / "x", b"old")

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        write_file(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_locks(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, shared=True), locked(path, shared=True), try_locked(path) as alone:
        assert not alone
    with try_locked(path) as alone, try_locked(path) as second:
        assert alone
        assert not second
