"""The build cache: one writer at a time, nothing left half written."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from provision import cache
from provision.paths import ROOT


def test_the_scratch_folder_is_gone_afterwards_also_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), cache.locked(tmp_path) as scratch:
        (scratch / "half").write_text("")
        raise RuntimeError
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_a_killed_builder_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "old" / "tree").mkdir(parents=True)
    with cache.locked(tmp_path) as scratch:
        assert list((tmp_path / "scratch").iterdir()) == [scratch]


def test_a_second_builder_waits_for_the_first(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with cache.locked(tmp_path):
            order.append("second in")

    with cache.locked(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(timeout=0.2)
        order.append("first out")
    thread.join(timeout=10)
    assert order == ["first out", "second in"]


def test_a_killed_builder_frees_the_lock(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from provision import cache\n"
        "with cache.locked(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, cwd=ROOT / "scripts", check=False)
    with cache.locked(tmp_path) as scratch:
        assert scratch.exists()


def test_put_moves_a_folder_whole(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x.whl").write_text("wheel")
    cache.put(tmp_path / "out", tmp_path / "wheels" / "key")
    assert (tmp_path / "wheels" / "key" / "x.whl").read_text() == "wheel"
    assert not (tmp_path / "out").exists()
