"""Who compiles, and for which CPU: the parts of a build's identity that the machine adds."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from provision.failure import Failure

# Compiled -march=native, llama.cpp's AMX matmul crashes in a compute thread.
NO_AMX = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")

# The lines of /proc/cpuinfo that say what code a CPU runs (x86, then Arm).
_CPU_KEYS = {"vendor_id", "cpu family", "model", "flags"} | {
    "CPU implementer",
    "CPU architecture",
    "CPU part",
    "Features",
}


def compiler(variable: str, default: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The command of a compiler. Raises Failure if it is not there."""
    command = shlex.split(environ.get(variable) or default)
    if shutil.which(command[0]) is None:
        raise Failure(
            f"no compiler: {command[0]} is not on the PATH; install one "
            f"(Debian: apt-get install g++) or set {variable}"
        )
    return command


def identity(command: list[str]) -> str:
    """First line of --version, which carries the vendor's build too."""
    asked = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    return asked.stdout.splitlines()[0]


def native_flags(command: list[str]) -> list[str]:
    """Compile for this CPU, less what llama.cpp gets wrong."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return []  # llama.cpp's own GGML_NATIVE chooses well there
    return ["-march=native", *(flag for flag in NO_AMX if _accepts(command, flag))]


def _accepts(command: list[str], flag: str) -> bool:
    probe = [*command, flag, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def cpu(cpuinfo: str) -> str:
    """What -march=native depends on, from the text of /proc/cpuinfo."""
    first = cpuinfo.split("\n\n", maxsplit=1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    wanted = {key.strip(): value.strip() for key, _, value in pairs if key.strip() in _CPU_KEYS}
    # The kernel's order of the flags is of no meaning.
    wanted = {key: " ".join(sorted(value.split())) for key, value in wanted.items()}
    return "\n".join(f"{key}: {wanted[key]}" for key in sorted(wanted))


def this_cpu() -> str:
    return cpu(Path("/proc/cpuinfo").read_text())
