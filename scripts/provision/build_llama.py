"""The command build_llama: the patched llama-cpp-python, built or cached, then installed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from provision import llama, venvs
from provision.paths import VENV
from provision.run import say


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "build_llama",
        description="Build the patched llama-cpp-python, or take it from the cache; install it.",
        epilog="CMAKE_ARGS, CC, CXX, CFLAGS, CXXFLAGS and LDFLAGS are honoured; "
        "CMAKE_ARGS=-DGGML_CUDA=ON builds for a GPU. The cache is CORRAL_CACHE or ~/.cache/corral.",
    )
    parser.add_argument(
        "--portable",
        action="store_true",
        help="for any CPU of this architecture, not only this one",
    )
    parser.add_argument(
        "--venv",
        type=Path,
        default=Path(os.environ.get("VIRTUAL_ENV") or VENV),
        help="environment to install into (the active one, else .venv in the checkout)",
    )
    options = parser.parse_args(argv)
    install(options.venv, portable=options.portable)
    return 0


def install(venv: Path, *, portable: bool = False) -> None:
    """Have the wheel of these inputs in the environment; a second time only looks."""
    venvs.ensure(venv)
    wheel = llama.wheel(portable=portable)
    version = wheel.name.split("-")[1]
    (packages,) = (venv / "lib").glob("python3*/site-packages")
    if (packages / f"llama_cpp_python-{version}.dist-info").exists():
        return
    say(f"installing llama-cpp-python {version}")
    venvs.pip(venv, "install", "--no-deps", "--force-reinstall", "--no-index", str(wheel))
