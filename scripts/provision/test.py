"""The command test: everything set up, then the checks, then the tests."""

from __future__ import annotations

import os
import shutil
import subprocess

from provision import check, environment, venvs
from provision.failure import Failure
from provision.models import GEMMA3, SMOLLM2, fetch
from provision.paths import ROOT, VENV
from provision.run import quiet, say

# Debian packages that single tests want; without them those tests skip and say so.
_DEBIAN = {"vmtouch": "vmtouch"}


def main(argv: list[str]) -> int:
    environment.prepare(dev=True)
    models = {
        "CORRAL_TEST_SMOLLM2": str(fetch(SMOLLM2)),
        "CORRAL_TEST_GEMMA3": str(fetch(GEMMA3)),
    }
    if os.environ.get("CI") == "true" and os.geteuid() == 0:
        _install_debian([name for name, program in _DEBIAN.items() if not shutil.which(program)])
    check.run()
    say("pytest")
    # corral's own settings would change what the tests see.
    own = {name: value for name, value in venvs.environment(VENV).items() if not _setting(name)}
    command = [str(venvs.python(VENV)), "-m", "pytest", *argv]
    return subprocess.run(command, cwd=ROOT, env=own | models, check=False).returncode


def _setting(name: str) -> bool:
    return name.startswith("CORRAL_") and name != "CORRAL_CACHE"


def _install_debian(packages: list[str]) -> None:
    if not packages:
        return
    say(f"apt-get install {' '.join(packages)}")
    try:
        quiet(["apt-get", "-q", "update"], "apt-get update")
        install = ["apt-get", "-qy", "install", "--no-install-recommends", *packages]
        quiet(install, "apt-get install")
    except (Failure, FileNotFoundError) as error:
        say(f"went without: {error}")
