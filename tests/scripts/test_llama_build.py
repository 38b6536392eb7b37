"""The build's pipeline on a tiny source distribution, all but the compiler."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provision import llama, venvs
from provision.failure import Failure
from provision.inputs import Inputs
from provision.patches import PatchError

PATCH = "--- a/src/x.c\n+++ b/src/x.c\n@@ -1 +1 @@\n-int x;\n+int y;\n"
FILES = {"src/x.c": "int x;\n", "llama_cpp/__init__.py": '__version__ = "9.9"\n'}


def source(files: dict[str, str] = FILES) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"llama_cpp_python-9.9/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


@dataclass
class Place:
    """A checkout's native folder, a cache, and what was done with them."""

    native: Path
    cache: Path
    compiled: list[str] = field(default_factory=list)
    downloads: int = 0

    def wheels(self) -> list[Path]:
        return list((self.cache / "wheels").rglob("*.whl"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path / "native", tmp_path / "cache")
    (place.native / "patches").mkdir(parents=True)
    (place.native / "patches" / "0001-y.patch").write_text(PATCH)
    archive = source()
    pin = f"llama-cpp-python==9.9 --hash=sha256:{hashlib.sha256(archive).hexdigest()}\n"
    (place.native / "llama-cpp-python.lock").write_text(pin)

    def pip(_venv: Path, *arguments: str) -> str:
        place.downloads += 1
        folder = Path(arguments[arguments.index("-d") + 1])
        folder.mkdir()
        (folder / "llama_cpp_python-9.9.tar.gz").write_bytes(archive)
        return ""

    def compile_(_inputs: Inputs, tree: Path, out: Path) -> None:
        place.compiled.append((tree / "src" / "x.c").read_text())
        version = (tree / "llama_cpp" / "__init__.py").read_text().split('"')[1]
        out.mkdir()
        (out / f"llama_cpp_python-{version}-py3-none-any.whl").write_text("wheel")

    monkeypatch.setenv("CORRAL_CACHE", str(place.cache))
    monkeypatch.setattr(llama, "NATIVE", place.native)
    monkeypatch.setattr(llama, "_PIN", place.native / "llama-cpp-python.lock")
    monkeypatch.setattr(llama, "_build_venv", lambda: tmp_path)
    monkeypatch.setattr(llama, "_compile", compile_)
    monkeypatch.setattr(venvs, "pip", pip)
    return place


def test_the_patched_source_is_compiled_under_a_local_version(place: Place) -> None:
    wheel = llama.wheel(portable=False)
    assert place.compiled == ["int y;\n"]
    assert wheel.name.startswith("llama_cpp_python-9.9+corral.h")
    assert place.wheels() == [wheel]


def test_our_own_sources_stand_beside_the_patched_ones(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.native / "own").mkdir()
    (place.native / "own" / "own.c").write_text("int own;\n")
    compile_, found = llama._compile, []

    def looks(inputs: Inputs, tree: Path, out: Path) -> None:
        found.extend(sorted(str(path.relative_to(tree)) for path in (tree / "native").rglob("*")))
        compile_(inputs, tree, out)

    monkeypatch.setattr(llama, "_compile", looks)
    llama.wheel(portable=False)
    assert found == ["native/own", "native/own/own.c"]


def test_a_second_build_of_the_same_takes_the_wheel(place: Place) -> None:
    assert llama.wheel(portable=False) == llama.wheel(portable=False)
    assert len(place.compiled) == 1


def test_another_patch_is_another_build_of_the_same_source(place: Place) -> None:
    first = llama.wheel(portable=False)
    (place.native / "patches" / "0001-y.patch").write_text(PATCH.replace("int y", "int z"))
    assert llama.wheel(portable=False) != first
    assert place.compiled == ["int y;\n", "int z;\n"]
    assert place.downloads == 1


def test_a_patch_that_does_not_apply_is_named_and_leaves_nothing(place: Place) -> None:
    (place.native / "patches" / "0002-again.patch").write_text(PATCH)
    with pytest.raises(PatchError, match=r"0002-again\.patch: src/x\.c: hunk 1 of 1"):
        llama.wheel(portable=False)
    with pytest.raises(PatchError, match=r"0002-again\.patch"):
        llama.check_series()
    assert place.wheels() == []
    assert list((place.cache / "scratch").iterdir()) == []


def test_an_interrupted_build_leaves_no_wheel(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_inputs: Inputs, _tree: Path, out: Path) -> None:
        out.mkdir()
        (out / "llama_cpp_python-9.9-py3-none-any.whl").write_text("whe")
        raise Failure("building failed")

    monkeypatch.setattr(llama, "_compile", dies)
    with pytest.raises(Failure, match="building failed"):
        llama.wheel(portable=False)
    assert place.wheels() == []


def test_a_damaged_source_in_the_cache_is_fetched_again(place: Place) -> None:
    llama.check_series()
    kept = next((place.cache / "sources").iterdir())
    kept.write_bytes(kept.read_bytes()[:-1])
    llama.check_series()
    assert place.downloads == 2


def test_a_source_without_its_version_line_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = tmp_path / "other.tar.gz"
    archive.write_bytes(source(FILES | {"llama_cpp/__init__.py": "\n"}))
    monkeypatch.setattr(llama, "_source", lambda _pin, _scratch: archive)
    with pytest.raises(Failure, match="has 0 lines with __version__"):
        llama.wheel(portable=False)
