"""The checkout's own environment, .venv: locked packages, corral itself, the patched llama.cpp."""

from __future__ import annotations

from provision import build_llama, venvs
from provision.inputs import sha256
from provision.paths import LOCKS, ROOT, VENV
from provision.run import say


def prepare(*, dev: bool = False, llama: bool = True) -> None:
    """Bring .venv up to date; does nothing that was done before for the same inputs."""
    venvs.ensure(VENV)
    venvs.install_lock(VENV, LOCKS / "runtime.txt")
    if dev:
        venvs.install_lock(VENV, LOCKS / "dev.txt")
    _install_corral()
    if llama:
        build_llama.install(VENV)


def _install_corral() -> None:
    """As an editable install: the checkout's files are what runs."""
    stamp = VENV / ".installed-corral"
    wanted = f"{ROOT} {sha256(ROOT / 'pyproject.toml')}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say("installing corral from the checkout")
    how = ("--no-deps", "--no-build-isolation", "--no-index")
    venvs.pip(VENV, "install", *how, "--editable", str(ROOT))
    stamp.write_text(wanted)
