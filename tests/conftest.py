"""Fixtures that tests of any part may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine may take any time over an example.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def _model(variable: str) -> Path:
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} names no model file; scripts/test fetches one and sets it")
    return Path(path)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, with a chat template."""
    return _model("CORRAL_TEST_SMOLLM2")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """gemma-3-270m, a base model without a chat template and with a large embedding table."""
    return _model("CORRAL_TEST_GEMMA3")
