"""Builds llama-server from the source that our library is built of: the mark to be measured by.

With the same compilers and flags, but without our patches: it is what a user has instead.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path

from provision import cache, llama
from provision.inputs import Inputs, gather
from provision.paths import NATIVE, cache_dir
from provision.run import logged, quiet, say

_PROGRAM = "llama-server"
_ON = ("SERVER", "TOOLS")
_OFF = ("EXAMPLES", "TESTS", "APP", "UI", "OPENSSL")

CMAKE = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    # The libraries are found beside the program, wherever both are moved.
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
    *(f"-DLLAMA_BUILD_{part}=ON" for part in _ON),
    *(f"-DLLAMA_{'' if part == 'OPENSSL' else 'BUILD_'}{part}=OFF" for part in _OFF),
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


def inputs() -> Inputs:
    library = gather(NATIVE, llama.BUILD_LOCK, portable=False)
    return replace(library, native={}, cmake=list(CMAKE))


def program() -> Path:
    """llama-server for this checkout and machine: from the cache, or built into it."""
    wanted = inputs()
    folder = cache_dir() / "llama-server" / wanted.key()
    if not folder.exists():
        with cache.locked(cache_dir()) as scratch:
            if not folder.exists():
                _build(wanted, scratch, folder)
    return folder / _PROGRAM


def _build(wanted: Inputs, scratch: Path, folder: Path) -> None:
    tree = llama.upstream_source(scratch)
    build, out = scratch / "build", scratch / "out"
    env = llama.compile_environment(wanted, scratch)
    log = cache_dir() / f"build-{wanted.key()[:12]}.log"
    configure, compile_ = commands(wanted, tree / "vendor" / "llama.cpp", build)
    quiet(configure, "configuring llama-server", env)
    say(f"compiling llama-server, minutes (log: {log})")
    logged(compile_, "building llama-server", log, env)
    out.mkdir()
    for path in _results(build / "bin"):
        path.rename(out / path.name)
    (out / "inputs.json").write_text(json.dumps(asdict(wanted), indent=2))
    cache.put(out, folder)


def commands(wanted: Inputs, source: Path, build: Path) -> tuple[list[str], list[str]]:
    """Configure, then compile. The caller's CMAKE_ARGS come last, as in the wheel's build."""
    user = shlex.split(wanted.user.get("CMAKE_ARGS", ""))
    configure = ["cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", *wanted.cmake, *user]
    return configure, ["cmake", "--build", str(build), "--target", _PROGRAM]


def _results(folder: Path) -> list[Path]:
    """The program and the libraries beside it, their links included."""
    return [folder / _PROGRAM, *sorted(folder.glob("*.so*"))]
