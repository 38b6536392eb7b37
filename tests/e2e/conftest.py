"""One daemon with the small models for the tests of a module, and a made mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import Daemon, running
from made_models import MoeShape, write_moe


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def daemon(home: Path, smollm2: Path) -> Iterator[Daemon]:
    with running(home) as daemon:
        daemon.pull("smollm2", smollm2)
        yield daemon


@pytest.fixture(scope="session")
def moe(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    """A mixture of 48 experts, 2 used: a short prompt touches a part of it."""
    (path,) = write_moe(tmp_path_factory.mktemp("made") / "moe.gguf", smollm2, MoeShape())
    return path
