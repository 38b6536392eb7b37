"""Applies unified diffs strictly: a hunk may have moved, but every line of it must match.

Ours, because it runs before anything is installed, and because patch(1) and its
ports either let unmatched context pass (fuzz) or refuse a hunk that merely moved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from provision.failure import Failure

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NO_NEWLINE = b"\\ No newline"


class PatchError(Failure):
    """A patch is malformed or does not fit its tree. Names patch, file and hunk."""


@dataclass(frozen=True)
class Hunk:
    start: int
    """Line of the old file, from 1; without old lines, the line to insert after."""
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]

    @property
    def index(self) -> int:
        """Where the old lines begin, from 0."""
        return self.start - 1 if self.old else self.start


@dataclass(frozen=True)
class FilePatch:
    path: str
    """Relative, without the a/ or b/."""
    creates: bool
    hunks: list[Hunk] = field(default_factory=list)


def parse(text: bytes, name: str) -> list[FilePatch]:
    """The files that a diff changes or creates. Text around them is ignored."""
    lines = _lines(text)
    files: list[FilePatch] = []
    at = 0
    while at < len(lines):
        if lines[at].startswith(b"--- ") and lines[at + 1 : at + 2] != []:
            files.append(_file_header(lines[at], lines[at + 1], name))
            at += 2
        elif found := _HUNK.match(lines[at]):
            if not files:
                raise PatchError(f"{name}: line {at + 1}: a hunk before any file header")
            hunk, at = _hunk(lines, at, found, name)
            files[-1].hunks.append(hunk)
        else:
            at += 1
    if not files or not all(file.hunks for file in files):
        raise PatchError(f"{name}: no hunks")
    return files


def _lines(text: bytes) -> list[bytes]:
    # splitlines() would also split at a lone carriage return, which diff does not.
    return re.findall(rb"[^\n]*\n|[^\n]+", text)


def _file_header(old: bytes, new: bytes, name: str) -> FilePatch:
    if not new.startswith(b"+++ "):
        raise PatchError(f"{name}: '--- ' is not followed by '+++ '")
    target = new[4:].split(b"\t")[0].strip().decode()
    path = PurePosixPath(*PurePosixPath(target).parts[1:])
    if target == "/dev/null":
        raise PatchError(f"{name}: {old[4:].strip().decode()}: removing a file is not supported")
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise PatchError(f"{name}: {target}: not a path inside the tree")
    return FilePatch(str(path), creates=old.startswith(b"--- /dev/null"))


def _hunk(lines: Sequence[bytes], at: int, header: re.Match[bytes], name: str) -> tuple[Hunk, int]:
    n_old, n_new = (1 if count is None else int(count) for count in header.group(2, 3))
    old: list[bytes] = []
    new: list[bytes] = []
    end = at + 1
    while len(old) < n_old or len(new) < n_new:
        line = lines[end] if end < len(lines) else b""
        sides = {b" ": (old, new), b"\n": (old, new), b"-": (old,), b"+": (new,)}.get(line[:1])
        if sides is None:
            raise PatchError(f"{name}: line {end + 1}: the hunk of line {at + 1} is cut off")
        for side in sides:
            side.append(line if line == b"\n" else line[1:])
        end += 1
        if lines[end : end + 1] and lines[end].startswith(_NO_NEWLINE):
            for side in sides:
                side[-1] = side[-1].rstrip(b"\n")
            end += 1
    return Hunk(int(header[1]), tuple(old), tuple(new)), end


def patched(original: Sequence[bytes], file: FilePatch, name: str) -> list[bytes]:
    """The file's lines with all hunks applied. Raises PatchError at the first that does not fit."""
    result = list(original)
    moved = 0
    floor = 0
    for number, hunk in enumerate(file.hunks, start=1):
        place = _place(result, hunk, hunk.index + moved, floor)
        if place is None:
            raise PatchError(
                f"{name}: {file.path}: hunk {number} of {len(file.hunks)} "
                f"(line {hunk.start}) does not apply"
            )
        result[place : place + len(hunk.old)] = hunk.new
        floor = place + len(hunk.new)
        moved = floor - (hunk.index + len(hunk.old))
    return result


def _place(lines: Sequence[bytes], hunk: Hunk, expected: int, floor: int) -> int | None:
    """The line, nearest to the expected one and not before floor, where the hunk fits."""
    n = len(hunk.old)
    places = range(floor, len(lines) - n + 1)
    fits = (at for at in places if tuple(lines[at : at + n]) == hunk.old)
    return min(fits, key=lambda at: abs(at - expected), default=None)


def apply_file(patch: Path, tree: Path) -> None:
    """Apply one patch to a tree. The tree is left half patched if a hunk does not fit."""
    for file in parse(patch.read_bytes(), patch.name):
        target = tree / file.path
        if file.creates == target.exists():
            state = "exists already" if file.creates else "does not exist"
            raise PatchError(f"{patch.name}: {file.path} {state}")
        original = [] if file.creates else _lines(target.read_bytes())
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"".join(patched(original, file, patch.name)))


def series(native: Path) -> list[Path]:
    """The patches in the order in which they apply."""
    return sorted((native / "patches").glob("*.patch"))
