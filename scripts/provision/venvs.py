"""Virtual environments: made once, installed from a lock whenever the lock has changed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from provision.inputs import sha256
from provision.run import quiet, say


def python(venv: Path) -> Path:
    return venv / "bin" / "python"


def ensure(venv: Path) -> None:
    """Make the environment if it is not there whole: pip is the last thing to arrive in it."""
    if python(venv).exists() and (venv / "bin" / "pip").exists():
        return
    say(f"making {venv}")
    quiet([sys.executable, "-m", "venv", "--clear", venv], f"making {venv}")


def install_lock(venv: Path, lock: Path) -> None:
    """Install exactly what the lock names, unless that was done for these very contents."""
    stamp = venv / f".installed-{lock.stem}"
    wanted = sha256(lock)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say(f"installing {lock.name}")
    pip(venv, "install", "--require-hashes", "-r", str(lock))
    stamp.write_text(wanted)


def pip(venv: Path, *arguments: str) -> str:
    """Run the environment's pip under its own configuration. Raises Failure."""
    command = [str(python(venv)), "-m", "pip", "--disable-pip-version-check", *arguments]
    return quiet(command, f"pip {arguments[0]}", environment(venv))


def environment(venv: Path) -> dict[str, str]:
    """The caller's variables with this environment's programs first on the PATH."""
    path = os.pathsep.join((str(venv / "bin"), os.environ.get("PATH", os.defpath)))
    return {**os.environ, "VIRTUAL_ENV": str(venv), "PATH": path}
