"""Builds the patched llama-cpp-python wheel, once for each set of inputs."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from provision import cache, patches, venvs
from provision.failure import Failure
from provision.inputs import Inputs, Pin, gather, local_version, python_version, read_pin, sha256
from provision.paths import LOCKS, NATIVE, cache_dir
from provision.run import logged, say

_PIN = NATIVE / "llama-cpp-python.lock"
BUILD_LOCK = LOCKS / "build.txt"

# cmake also installs a second copy of the libraries, headers and cmake files beside the
# package, and each library under three names. The loader needs two of these names.
_NOT_IN_WHEEL = "lib/**;include/**;bin/**;llama_cpp/lib/*.so.*.*.*"


def wheel(*, portable: bool) -> Path:
    """The wheel for this checkout and machine: from the cache, or built into it."""
    inputs = gather(NATIVE, BUILD_LOCK, portable=portable)
    folder = cache_dir() / "wheels" / inputs.key()
    if not folder.exists():
        with cache.locked(cache_dir()) as scratch:
            if not folder.exists():
                _build(inputs, scratch, folder)
    (found,) = folder.glob("*.whl")
    return found


def _build(inputs: Inputs, scratch: Path, folder: Path) -> None:
    tree = patched_source(scratch)
    _set_version(tree, local_version(read_pin(_PIN), inputs.key()))
    out = scratch / "out"
    _compile(inputs, tree, out)
    (out / "inputs.json").write_text(json.dumps(asdict(inputs), indent=2))
    cache.put(out, folder)


def upstream_source(scratch: Path) -> Path:
    """The pinned source as it was published, in the scratch folder of a held cache."""
    return _unpack(_source(read_pin(_PIN), scratch), scratch / "tree")


def patched_source(scratch: Path) -> Path:
    """The pinned source with the series applied and our own sources beside it, in the scratch
    folder of a held cache."""
    tree = upstream_source(scratch)
    shutil.copytree(NATIVE, tree / NATIVE.name, ignore=shutil.ignore_patterns("patches", "*.lock"))
    for patch in patches.series(NATIVE):
        say(f"applying {patch.name}")
        patches.apply_file(patch, tree)
    return tree


def compile_environment(inputs: Inputs, scratch: Path) -> dict[str, str]:
    """The caller's variables, the build environment's cmake and ninja, the inputs' flags."""
    return venvs.environment(_build_venv()) | {
        "TMPDIR": str(scratch),  # the objects too belong beside the source, not in /tmp
        "CFLAGS": " ".join((*inputs.compile_flags, inputs.user.get("CFLAGS", ""))),
        "CXXFLAGS": " ".join((*inputs.compile_flags, inputs.user.get("CXXFLAGS", ""))),
    }


def check_series() -> None:
    """Apply the patches to the files they touch, and nothing more. Raises PatchError."""
    touched = {
        file.path
        for patch in patches.series(NATIVE)
        for file in patches.parse(patch.read_bytes(), patch.name)
    }
    pin = read_pin(_PIN)
    source = _kept_source(pin)
    if source is None:
        with cache.locked(cache_dir()) as scratch:
            source = _source(pin, scratch)
    with TemporaryDirectory() as folder:
        tree = _unpack(source, Path(folder), touched)
        for patch in patches.series(NATIVE):
            patches.apply_file(patch, tree)


def _build_venv() -> Path:
    venv = cache_dir() / f"build-{sha256(BUILD_LOCK)[:12]}-python{python_version()}"
    venvs.ensure(venv)
    venvs.install_lock(venv, BUILD_LOCK)
    return venv


def _kept_source(pin: Pin) -> Path | None:
    kept = _source_path(pin)
    return kept if kept.exists() and sha256(kept) == pin.sha256 else None


def _source_path(pin: Pin) -> Path:
    return cache_dir() / "sources" / f"llama-cpp-python-{pin.version}.tar.gz"


def _source(pin: Pin, scratch: Path) -> Path:
    """The source distribution from the cache, or by way of pip, which checks its hash."""
    if kept := _kept_source(pin):
        return kept
    say(f"fetching llama-cpp-python {pin.version} (source)")
    wanted = scratch / "wanted.txt"
    wanted.write_text(pin.requirement)
    how = ("--require-hashes", "--no-deps", "--no-binary=:all:", "--no-build-isolation")
    # pip runs the build backend's metadata step even for a download.
    venvs.pip(_build_venv(), "download", *how, "-d", str(scratch / "source"), "-r", str(wanted))
    (fetched,) = (scratch / "source").iterdir()
    cache.put(fetched, _source_path(pin))
    return _source_path(pin)


def _unpack(source: Path, folder: Path, only: Collection[str] | None = None) -> Path:
    """The one folder in a source distribution, whole or with some of its files."""
    with tarfile.open(source) as archive:
        for member in archive:
            if only is None or member.name.partition("/")[2] in only:
                archive.extract(member, folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


def _set_version(tree: Path, version: str) -> None:
    file = tree / "llama_cpp" / "__init__.py"
    text, n = re.subn(r"(?m)^__version__ = .*$", f'__version__ = "{version}"', file.read_text())
    if n != 1:
        raise Failure(f"llama_cpp/__init__.py has {n} lines with __version__, wanted one")
    file.write_text(text)


def _compile(inputs: Inputs, tree: Path, out: Path) -> None:
    log = cache_dir() / f"build-{inputs.key()[:12]}.log"
    say(f"compiling llama.cpp, minutes (log: {log})")
    cmake_args = " ".join((*inputs.cmake, inputs.user.get("CMAKE_ARGS", "")))
    env = compile_environment(inputs, tree.parent) | {"CMAKE_ARGS": cmake_args}
    pip = (venvs.python(_build_venv()), "-m", "pip", "--disable-pip-version-check")
    how = (
        "--no-deps",
        "--no-build-isolation",
        "-v",
        f"--config-settings=wheel.exclude={_NOT_IN_WHEEL}",
    )
    logged([*pip, "wheel", *how, "-w", out, tree], "building llama-cpp-python", log, env)
