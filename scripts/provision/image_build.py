"""The command image_build: the environment that the container image holds, in a given folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from provision import build_llama, venvs
from provision.failure import Failure
from provision.paths import LOCKS, ROOT
from provision.run import say


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("image_build", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the environment; scripts in it keep the path")
    folder = parser.parse_args(argv).folder.resolve()
    venvs.ensure(folder)
    venvs.install_lock(folder, LOCKS / "runtime.txt")
    build_llama.install(folder, portable=True)
    say("installing corral")
    venvs.pip(folder, "install", "--no-deps", "--no-build-isolation", "--no-index", str(ROOT))
    _check_variants(folder)
    return 0


def _check_variants(folder: Path) -> None:
    """Without them the library loads and finds no CPU to compute on. Raises Failure."""
    found = sorted(folder.glob("lib/python3*/site-packages/llama_cpp/lib/libggml-cpu-*.so"))
    if not found:
        raise Failure("the portable build installed no libggml-cpu-*.so")
    say(f"{len(found)} CPU variants: {' '.join(path.stem[12:] for path in found)}")
