"""All that goes into a build of llama.cpp, and the key that names its result."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from provision import toolchain
from provision.failure import Failure

# Change when the recipe in llama.py changes its result.
RECIPE = "2"

_SMALL = ("TOOLS", "EXAMPLES", "TESTS", "SERVER")
BASE_CMAKE = (*(f"-DLLAMA_BUILD_{part}=OFF" for part in _SMALL), "-DLLAVA_BUILD=OFF")

# One library for each CPU generation, chosen at run time. llama.cpp installs such libraries
# as if they were programs, hence BINDIR.
PORTABLE_CMAKE = (
    "-DGGML_NATIVE=OFF",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_CPU_ALL_VARIANTS=ON",
    "-DCMAKE_INSTALL_BINDIR=llama_cpp/lib",
)

# Variables of the caller that steer cmake or the compilers.
USER_VARIABLES = (
    *("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CMAKE_ARGS", "CMAKE_GENERATOR"),
    *("CUDACXX", "CUDAARCHS", "CUDAHOSTCXX", "CUDA_PATH", "HIPCXX", "ROCM_PATH"),
)


@dataclass(frozen=True)
class Pin:
    """The source distribution to build."""

    requirement: str
    """The pin file as pip reads it, hash included."""
    version: str
    sha256: str


@dataclass(frozen=True)
class Inputs:
    recipe: str
    source_sha256: str
    native: dict[str, str]
    """SHA-256 of each file under native/, by its path there."""
    build_lock: str
    """SHA-256 of the lock of the build environment."""
    compilers: list[str]
    python: str
    machine: str
    cpu: str
    """Empty for a portable build."""
    cmake: list[str]
    compile_flags: list[str]
    user: dict[str, str]

    def key(self) -> str:
        """Hexadecimal SHA-256 over everything."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def read_pin(path: Path) -> Pin:
    """Raises Failure if the file does not pin one version by one hash."""
    text = path.read_text()
    found = re.findall(
        r"^llama-cpp-python==(\S+)[\s\\]+--hash=sha256:([0-9a-f]{64})\s*$", text, re.M
    )
    if len(found) != 1:
        raise Failure(f"{path.name}: wants one llama-cpp-python==VERSION with one --hash=sha256:…")
    return Pin(text, *found[0])


def local_version(pin: Pin, key: str) -> str:
    """The h keeps an all-digit key from being read as a number, which would drop zeros."""
    return f"{pin.version}+corral.h{key[:12]}"


def python_version() -> str:
    """Major and minor: the wheel itself serves any."""
    return ".".join(platform.python_version_tuple()[:2])


def file_hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md")
    return {str(path.relative_to(folder)): sha256(path) for path in files}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def gather(
    native: Path, build_lock: Path, *, portable: bool, environ: Mapping[str, str] = os.environ
) -> Inputs:
    """Read everything from the disk and ask the compilers."""
    compilers = [toolchain.compiler("CC", "cc", environ), toolchain.compiler("CXX", "c++", environ)]
    cmake = [*BASE_CMAKE, *(PORTABLE_CMAKE if portable else ())]
    return Inputs(
        recipe=RECIPE,
        source_sha256=read_pin(native / "llama-cpp-python.lock").sha256,
        native=file_hashes(native),
        build_lock=sha256(build_lock),
        compilers=[toolchain.identity(command) for command in compilers],
        python=python_version(),
        machine=" ".join((platform.system(), platform.machine(), *platform.libc_ver())),
        cpu="" if portable else toolchain.this_cpu(),
        cmake=cmake,
        compile_flags=[] if portable else toolchain.native_flags(compilers[1]),
        user={name: environ[name] for name in USER_VARIABLES if name in environ},
    )
