"""The command lock: resolves pyproject.toml and scripts/locks/*.in to pinned, hashed files."""

from __future__ import annotations

import argparse

from provision import venvs
from provision.paths import LOCKS, ROOT, cache_dir
from provision.run import quiet, say

_TOOL = "pip-tools==7.6.2"

# In order: dev.in is constrained by runtime.txt.
_SOURCES = {
    "runtime": ("pyproject.toml", "scripts/locks/runtime.in"),
    "dev": ("scripts/locks/dev.in",),
    "build": ("scripts/locks/build.in",),
}

# Whoever runs this may have a registry or folder of his own, which is no one else's business.
_NO_SOURCES = ("--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("lock", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest allowed versions")
    upgrade = ["--upgrade"] if parser.parse_args(argv).upgrade else []
    venv = cache_dir() / "lock-tool"
    venvs.ensure(venv)
    venvs.pip(venv, "install", _TOOL)
    for name, sources in _SOURCES.items():
        say(f"resolving {name}.txt")
        out = (LOCKS / f"{name}.txt").relative_to(ROOT)
        how = ("--quiet", "--generate-hashes", "--strip-extras", "--allow-unsafe", *_NO_SOURCES)
        compile_ = (
            str(venv / "bin" / "pip-compile"),
            *how,
            *upgrade,
            f"--output-file={out}",
            *sources,
        )
        quiet(compile_, f"resolving {name}.txt", cwd=ROOT)
    return 0
