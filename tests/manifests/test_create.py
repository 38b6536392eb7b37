"""Creating and pulling: from files and from models, and refusals before anything is stored."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from made_manifests import MODES
from made_models import write_tiny
from tiny_gguf import Raw

from manifests.create import create, pull_local
from manifests.errors import (
    InvalidGGUF,
    InvalidValue,
    ManifestError,
    ModelfileError,
    ModelMissing,
)
from manifests.manifest import LoaderOptions, Manifest, Message, Parameters
from manifests.modelfile import parse_modelfile
from manifests.names import parse_name
from manifests.store import Store

NAME = parse_name("made")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.gguf")


def _create(store: Store, text: str, base_dir: Path, name: str = "made") -> Manifest:
    return create(store, parse_name(name), parse_modelfile(text), base_dir, MODES)


def _stored_bytes(store: Store, manifest: Manifest) -> list[bytes]:
    return [store.blob_path(blob.digest).read_bytes() for blob in manifest.blobs]


def test_pull(store: Store, tiny: Path) -> None:
    manifest = pull_local(store, NAME, tiny)
    assert store.get(NAME) == manifest
    assert _stored_bytes(store, manifest) == [tiny.read_bytes()]
    assert (manifest.details.architecture, manifest.details.context_length) == ("llama", 128)
    assert (manifest.details.chat_template, manifest.details.bos_token) == ("{{ messages }}", "<s>")
    assert manifest.details.metadata["llama.context_length"] == 128
    assert manifest.details.metadata["general.name"] == "tiny"
    assert "tokenizer.chat_template" not in manifest.details.metadata
    assert manifest.modelfile is None


def test_pulling_the_same_again_keeps_edits(store: Store, tiny: Path) -> None:
    pull_local(store, NAME, tiny)
    edited = store.edit(NAME, lambda m: m.model_copy(update={"system": "mine"}))
    assert pull_local(store, NAME, tiny) == edited
    assert store.get(NAME) == edited


def test_pulling_other_weights_replaces_the_model(store: Store, tiny: Path) -> None:
    old = pull_local(store, NAME, tiny)
    new = pull_local(store, NAME, write_tiny(tiny, seed=1))
    assert store.get(NAME) == new
    assert not store.blob_path(old.blobs[0].digest).exists()


def test_pulling_over_a_broken_manifest_mends_it(store: Store, tiny: Path) -> None:
    pull_local(store, NAME, tiny)
    (store.root / "manifests/made/latest.json").write_text("{")
    assert pull_local(store, NAME, tiny) == store.get(NAME)


def test_splits_and_their_common_progress(store: Store, tmp_path: Path) -> None:
    (tmp_path / "splits").mkdir()
    write_tiny(tmp_path / "splits" / "m.gguf", split=1)
    files = sorted((tmp_path / "splits").iterdir())
    seen: list[tuple[int, int]] = []
    manifest = pull_local(store, NAME, files[2], lambda done, all_: seen.append((done, all_)))
    assert [blob.filename for blob in manifest.blobs] == [file.name for file in files]
    assert _stored_bytes(store, manifest) == [file.read_bytes() for file in files]
    total = sum(file.stat().st_size for file in files)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == ((0, total), (total, total))


def _replace_by_garbage(part: Path) -> None:
    part.unlink()
    part.write_text("no gguf")


def _replace_by_a_model_of_the_same_size(part: Path) -> None:
    other = part.with_name("other")
    other.write_bytes(part.read_bytes()[:-8] + b"\1" * 8)
    other.replace(part)


def _replace_by_a_pipe(part: Path) -> None:
    part.unlink()
    os.mkfifo(part)


def _replace_by_a_link_to_zeros(part: Path) -> None:
    part.unlink()
    part.symlink_to("/dev/zero")


def _write_into(part: Path) -> None:
    with part.open("r+b") as file:
        file.write(b"no gguf")


@pytest.mark.parametrize(
    "change",
    [
        _replace_by_garbage,
        _replace_by_a_model_of_the_same_size,
        _replace_by_a_pipe,
        _replace_by_a_link_to_zeros,
        _write_into,
    ],
)
def test_a_part_that_changes_after_it_was_checked_is_not_stored(
    store: Store, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder = tmp_path / "splits"
    folder.mkdir()
    write_tiny(folder / "m.gguf", split=1)
    files = sorted(folder.iterdir())
    for file in files:
        os.utime(file, ns=(0, 0))
    changed = False

    def progress(done: int, _total: int) -> None:
        nonlocal changed
        if done and not changed:
            changed = True
            change(files[1])

    with pytest.raises(InvalidGGUF, match=r"m-00002-of-00003\.gguf: (changed|is not a regular)"):
        pull_local(store, NAME, folder, progress)
    assert store.names() == []
    assert list((store.root / "blobs").iterdir()) == []


def test_a_folder_with_one_model(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InvalidGGUF, match=r"folder without a \.gguf"):
        pull_local(store, NAME, folder)
    write_tiny(folder / "m.gguf", split=1)
    (folder / "README.md").write_text("x")
    assert len(pull_local(store, NAME, folder).blobs) == 3
    write_tiny(folder / "other.gguf")
    with pytest.raises(InvalidGGUF, match=r"more than one model \(m-00001-of-00003\.gguf, other"):
        pull_local(store, NAME, folder)


@pytest.mark.parametrize("text", ["tiny.gguf", "./tiny.gguf", "{base}/tiny.gguf", "."])
def test_from_a_path(store: Store, tiny: Path, text: str) -> None:
    manifest = _create(store, f"FROM {text.format(base=tiny.parent)}", tiny.parent)
    assert _stored_bytes(store, manifest) == [tiny.read_bytes()]


def test_from_a_path_in_the_home_folder(
    store: Store, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tiny.parent))
    assert _create(store, "FROM ~/tiny.gguf", Path("/")).blobs
    with pytest.raises(InvalidValue, match="FROM: '~no_such_user/x' names a home"):
        _create(store, "FROM ~no_such_user/x", Path("/"))


def test_the_modelfile_is_its_own_rung(store: Store, tiny: Path) -> None:
    text = """\
FROM tiny.gguf
PARAMETER weight_residency lazy
PARAMETER temperature 0.1
SYSTEM Be brief.
TEMPLATE {{ messages }}
MESSAGE user hi
LICENSE MIT
"""
    manifest = _create(store, text, tiny.parent)
    assert manifest.modelfile is not None
    assert manifest.modelfile.loader == LoaderOptions(weight_residency="lazy")
    assert manifest.modelfile.parameters == Parameters(temperature=0.1)
    assert manifest.modelfile.text == text
    assert (manifest.loader, manifest.parameters) == (LoaderOptions(), Parameters())
    assert (manifest.system, manifest.template) == ("Be brief.", "{{ messages }}")
    assert manifest.messages == (Message(role="user", content="hi"),)
    assert manifest.license == ("MIT",)
    assert store.get(NAME) == manifest


def test_from_a_stored_model_inherits_what_is_left_open(store: Store, tiny: Path) -> None:
    parent_text = (
        "FROM tiny.gguf\nPARAMETER n_ctx 64\nPARAMETER top_k 1\nSYSTEM parent\n"
        "TEMPLATE {{ a }}\nMESSAGE user hi\nLICENSE MIT"
    )
    _create(store, parent_text, tiny.parent, "parent:v1")
    store.edit(
        parse_name("parent:v1"),
        lambda m: m.model_copy(update={"loader": LoaderOptions(n_threads=3)}),
    )
    parent = store.get(parse_name("parent:v1"))
    child = _create(store, "FROM parent:v1\nPARAMETER top_k 2\nPARAMETER seed 5", tiny.parent)
    assert child.blobs == parent.blobs
    assert child.details == parent.details
    assert child.loader == LoaderOptions(n_threads=3)
    assert child.modelfile is not None
    assert child.modelfile.loader == LoaderOptions(n_ctx=64)
    assert child.modelfile.parameters == Parameters(top_k=2, seed=5)
    assert (child.system, child.template) == ("parent", "{{ a }}")
    assert (child.messages, child.license) == (parent.messages, parent.license)
    assert child.parent_model == "parent:v1"
    other = _create(store, 'FROM parent:v1\nSYSTEM ""\nMESSAGE user x', tiny.parent, "other")
    assert (other.system, other.messages) == ("", (Message(role="user", content="x"),))
    store.delete(parse_name("parent:v1"))
    assert _stored_bytes(store, child) == [tiny.read_bytes()]


def test_a_word_is_a_stored_model_before_it_is_a_folder(store: Store, tiny: Path) -> None:
    (tiny.parent / "word").mkdir()
    with pytest.raises(InvalidGGUF, match="is a folder without"):
        _create(store, "FROM word", tiny.parent)
    pull_local(store, parse_name("word"), tiny)
    assert _create(store, "FROM word", tiny.parent).parent_model == "word:latest"


@pytest.mark.parametrize("line", ["SYSTEM Be brief.", "MESSAGE user Hi"])
def test_words_for_a_chat_need_a_template_to_stand_in(store: Store, line: str) -> None:
    base = write_tiny(store.root / "base.gguf", template=None)
    text = f"FROM {base}\n{line}\n"
    with pytest.raises(InvalidValue, match="no chat template; add a TEMPLATE"):
        _create(store, text, store.root)
    assert store.names() == []
    assert _create(store, text + "TEMPLATE {{ messages }}", store.root).template


def test_a_model_may_be_built_on_itself(store: Store, tiny: Path) -> None:
    pull_local(store, NAME, tiny)
    manifest = _create(store, "FROM made\nSYSTEM again", tiny.parent)
    assert _stored_bytes(store, manifest) == [tiny.read_bytes()]
    assert store.get(NAME).system == "again"


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        ("SYSTEM x", ModelfileError, "line 1: no FROM"),
        ("FROM tiny.gguf\nADAPTER x", ModelfileError, "line 2: ADAPTER"),
        ("FROM nothing", ModelMissing, "model 'nothing:latest' not found"),
        ("FROM no thing", InvalidValue, "FROM: 'no thing' is neither a file nor a model name"),
        ("FROM /" + "x" * 5000, InvalidGGUF, "File name too long"),
        ("FROM x/ /" + "x" * 5000, InvalidGGUF, "File name too long"),
        ("FROM " + "x" * 300, InvalidGGUF, "File name too long"),
        ("FROM " + "x/" * 4000, InvalidGGUF, "File name too long"),
        ("FROM /x-00001-of-00002.gguf/" + "x" * 300 + "-00001-of-00002.gguf", InvalidGGUF, ""),
        ("FROM " + "x/" * 1_000_000, InvalidGGUF, "File name too long"),
        ("FROM ./nothing", InvalidGGUF, "No such file"),
        ("FROM nothing.gguf", InvalidGGUF, "No such file"),
        ("FROM broken.gguf", InvalidGGUF, "truncated: tensor 'w' ends at byte"),
        (
            "FROM tiny.gguf\nPARAMETER weight_residency lazzy",
            InvalidValue,
            "PARAMETER weight_residency: unknown mode 'lazzy', did you mean 'lazy'? modes: eager,",
        ),
        ("FROM tiny.gguf\nTEMPLATE {{ .Prompt }}", InvalidValue, "corral takes Jinja"),
    ],
)
def test_refused_before_anything_is_stored(
    store: Store, tiny: Path, text: str, error: type[ManifestError], why: str
) -> None:
    Raw(data=bytes(5)).write(tiny.with_name("broken.gguf"))
    with pytest.raises(error) as raised:
        _create(store, text, tiny.parent)
    assert why in raised.value.message
    assert len(raised.value.message) < 4096
    assert store.names() == []
    assert list((store.root / "blobs").iterdir()) == []


def test_a_broken_file_is_refused_at_pull(store: Store, tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>not found</html>")
    with pytest.raises(
        InvalidGGUF, match=r"page\.gguf: is not a GGUF file: it starts with b'<htm'"
    ):
        pull_local(store, NAME, tmp_path / "page.gguf")
    assert list((store.root / "blobs").iterdir()) == []
