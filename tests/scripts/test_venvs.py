"""Environments are installed from a lock when its contents changed, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision import build_llama, llama, venvs
from provision.failure import Failure


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = []

    def pip(_venv: Path, *arguments: str) -> str:
        calls.append(arguments)
        return ""

    monkeypatch.setattr(venvs, "pip", pip)
    monkeypatch.setattr(venvs, "ensure", lambda _venv: None)
    return calls


def test_a_lock_is_installed_with_its_hashes_and_once(
    tmp_path: Path, calls: list[tuple[str, ...]]
) -> None:
    lock = tmp_path / "runtime.txt"
    lock.write_text("a==1\n")
    venvs.install_lock(tmp_path, lock)
    venvs.install_lock(tmp_path, lock)
    assert calls == [("install", "--require-hashes", "-r", str(lock))]
    lock.write_text("a==2\n")
    venvs.install_lock(tmp_path, lock)
    assert len(calls) == 2


def test_a_failed_install_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Path] = []

    def fails(venv: Path, *_arguments: str) -> str:
        tries.append(venv)
        raise Failure("no network")

    monkeypatch.setattr(venvs, "pip", fails)
    lock = tmp_path / "runtime.txt"
    lock.write_text("a==1\n")
    for _ in range(2):
        with pytest.raises(Failure):
            venvs.install_lock(tmp_path, lock)
    assert len(tries) == 2


def test_the_wheel_is_installed_only_where_its_version_is_not(
    tmp_path: Path, calls: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "llama_cpp_python-9.9+corral.habc-py3-none-any.whl"
    monkeypatch.setattr(llama, "wheel", lambda *, portable: wheel)
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "llama_cpp_python-9.9+corral.hdef.dist-info").mkdir(parents=True)
    build_llama.install(tmp_path)
    assert [arguments[-1] for arguments in calls] == [str(wheel)]
    (packages / "llama_cpp_python-9.9+corral.habc.dist-info").mkdir()
    build_llama.install(tmp_path)
    assert len(calls) == 1
