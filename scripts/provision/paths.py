"""Where the commands find and keep things."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
LOCKS = ROOT / "scripts" / "locks"
NATIVE = ROOT / "native"


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """What survives the checkout: wheels, source distributions, models."""
    if own := environ.get("CORRAL_CACHE"):
        return Path(own).resolve()
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "corral"
