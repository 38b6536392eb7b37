"""The build of llama-server, all but the compiler: its inputs, commands and place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from provision import llama, llama_server
from provision.inputs import Inputs, gather
from provision.paths import LOCKS, NATIVE


def library() -> Inputs:
    return gather(NATIVE, LOCKS / "build.txt", portable=False)


def test_it_is_built_of_what_the_library_is_built_of_but_for_our_patches() -> None:
    server = llama_server.inputs()
    assert replace(server, cmake=[]) == replace(library(), native={}, cmake=[])
    assert server.key() != library().key()
    assert {"-DLLAMA_BUILD_SERVER=ON", "-DBUILD_SHARED_LIBS=ON"} <= set(server.cmake)


def test_the_commands_configure_and_build_the_one_target(tmp_path: Path) -> None:
    inputs = replace(llama_server.inputs(), user={"CMAKE_ARGS": "-DGGML_CUDA=ON -DX='a b'"})
    configure, compile_ = llama_server.commands(inputs, tmp_path / "s", tmp_path / "b")
    assert configure[:5] == ["cmake", "-S", str(tmp_path / "s"), "-B", str(tmp_path / "b")]
    assert configure[-2:] == ["-DGGML_CUDA=ON", "-DX=a b"]
    assert set(llama_server.CMAKE) < set(configure)
    assert compile_ == ["cmake", "--build", str(tmp_path / "b"), "--target", "llama-server"]


def test_the_program_is_kept_with_its_libraries_and_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments: list[Mapping[str, str]] = []

    def compile_(command: Sequence[str], _what: str, _log: Path, env: Mapping[str, str]) -> None:
        environments.append(env)
        folder = Path(command[2]) / "bin"
        folder.mkdir(parents=True)
        (folder / "llama-server").write_text("program")
        (folder / "libllama.so.1").write_text("library")
        (folder / "libllama.so").symlink_to("libllama.so.1")
        (folder / "other").write_text("not wanted")

    monkeypatch.setenv("CORRAL_CACHE", str(tmp_path))
    monkeypatch.setattr(llama, "_build_venv", lambda: tmp_path / "venv")
    monkeypatch.setattr(llama, "upstream_source", lambda scratch: scratch / "tree")
    monkeypatch.setattr(llama_server, "quiet", lambda *_: "")
    monkeypatch.setattr(llama_server, "logged", compile_)
    program = llama_server.program()
    assert program == llama_server.program()
    kept = sorted(path.name for path in program.parent.iterdir())
    assert kept == ["inputs.json", "libllama.so", "libllama.so.1", "llama-server"]
    assert (program.parent / "libllama.so").read_text() == "library"
    (env,) = environments
    assert set(library().compile_flags) <= set(env["CFLAGS"].split())
    assert set(library().compile_flags) <= set(env["CXXFLAGS"].split())
