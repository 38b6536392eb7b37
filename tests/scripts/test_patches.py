"""The strict patch applier: what it accepts, and how it names what it does not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision.patches import PatchError, apply_file, parse, patched

TEN = "".join(f"line {n}\n" for n in range(1, 11))
CHANGE = """Why: a test.

--- a/src/file.txt
+++ b/src/file.txt
@@ -3,4 +3,5 @@ some function
 line 3
 line 4
-line 5
+LINE 5
+line 5b
 line 6
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "file.txt").write_text(TEN)
    return tmp_path


def applied(tree: Path, patch: str, name: str = "0007-test.patch") -> str:
    (tree / name).write_text(patch)
    apply_file(tree / name, tree)
    return (tree / "src" / "file.txt").read_text()


def test_changes_the_lines_of_the_hunk_and_no_others(tree: Path) -> None:
    assert applied(tree, CHANGE) == TEN.replace("line 5\n", "LINE 5\nline 5b\n")


def test_a_hunk_that_moved_is_found(tree: Path) -> None:
    (tree / "src" / "file.txt").write_text("new\n" * 40 + TEN)
    assert applied(tree, CHANGE) == "new\n" * 40 + TEN.replace("line 5\n", "LINE 5\nline 5b\n")


def test_of_two_places_that_fit_the_nearer_is_taken(tree: Path) -> None:
    (tree / "src" / "file.txt").write_text(TEN + TEN)
    assert applied(tree, CHANGE) == TEN.replace("line 5\n", "LINE 5\nline 5b\n") + TEN


def test_one_changed_context_line_is_an_error_that_names_patch_file_and_hunk(tree: Path) -> None:
    (tree / "src" / "file.txt").write_text(TEN.replace("line 6\n", "line six\n"))
    with pytest.raises(
        PatchError, match=r"0007-test\.patch: src/file\.txt: hunk 1 of 1 \(line 3\)"
    ):
        applied(tree, CHANGE)


def test_hunks_do_not_apply_out_of_order(tree: Path) -> None:
    second = "@@ -9,2 +10,2 @@\n line 1\n-line 2\n+LINE 2\n"
    with pytest.raises(PatchError, match="hunk 2 of 2"):
        applied(tree, CHANGE + second)


def test_a_new_file_is_created_and_must_be_new(tree: Path) -> None:
    patch = "--- /dev/null\n+++ b/deep/new.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n"
    applied(tree, patch)
    assert (tree / "deep" / "new.txt").read_text() == "one\ntwo\n"
    with pytest.raises(PatchError, match=r"deep/new\.txt exists already"):
        applied(tree, patch)


def test_a_file_that_is_gone_is_named(tree: Path) -> None:
    (tree / "src" / "file.txt").unlink()
    with pytest.raises(PatchError, match=r"src/file\.txt does not exist"):
        applied(tree, CHANGE)


@pytest.mark.parametrize("target", ["b/../../outside", "/etc/passwd/../..", "b"])
def test_a_path_outside_the_tree_is_refused(tree: Path, target: str) -> None:
    with pytest.raises(PatchError, match="not a path inside the tree"):
        applied(tree, CHANGE.replace("b/src/file.txt", target))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("no diff at all\n", "no hunks"),
        (CHANGE.removesuffix(" line 6\n"), "cut off"),
        (CHANGE[CHANGE.index("@@") :], "before any file header"),
        ("--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", "removing a file"),
    ],
)
def test_a_malformed_patch_is_refused(text: str, what: str) -> None:
    with pytest.raises(PatchError, match=what):
        parse(text.encode(), "bad.patch")


def test_missing_newline_at_the_end_is_kept_and_matched(tree: Path) -> None:
    (tree / "src" / "file.txt").write_text("old")
    mark = "\\ No newline at end of file\n"
    patch = f"--- a/src/file.txt\n+++ b/src/file.txt\n@@ -1 +1 @@\n-old\n{mark}+new\n{mark}"
    assert applied(tree, patch) == "new"


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n"]), max_size=12)


@pytest.mark.skipif(shutil.which("diff") is None, reason="needs diff(1)")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=LINES.filter(bool), new=LINES)
def test_agrees_with_diff(tmp_path: Path, old: list[str], new: list[str]) -> None:
    if old == new:
        return
    for name, lines in (("old", old), ("new", new)):
        (tmp_path / name).write_text("".join(lines))
    command = ["diff", "-u", "--label", "a/f", "--label", "b/f", "old", "new"]
    text = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).stdout
    (file,) = parse(text, "made")
    result = patched([line.encode() for line in old], file, "made")
    assert result == [line.encode() for line in new]
