"""The documentation as tests see it: its pages' tables, links, code blocks and commands."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`]+)`")
_TOLD = re.compile(r"# (\d{3}): (.+)")
_PROGRAMS = ("curl ", "corral ")


@dataclass(frozen=True)
class Command:
    where: str
    """Page and line."""
    text: str
    runs: bool
    """It stands in a block of the language sh, not in one of another or in running text."""
    whole: bool
    """It stands in a block: words in running text may be cut short."""
    status: int = 200
    """Other than 200 where a comment before it tells."""
    error: str = ""
    """What that comment says of the error."""

    def words(self) -> list[str]:
        """Without the program, and without what a pipe follows."""
        words = shlex.split(self.text)[1:]
        return words[: words.index("|")] if "|" in words else words


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    """Empty for a block that is only indented."""
    lines: list[str]


@dataclass(frozen=True)
class Curl:
    method: str
    path: str
    body: Any
    """Of the JSON, or None."""


def blocks(page: Path) -> list[Block]:
    """Fenced and indented blocks in their order."""
    found: list[Block] = []
    fenced: Block | None = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        indented = line.startswith("    ")
        if line.startswith("```"):
            if fenced is None:
                fenced = Block(number, line[3:].strip(), [])
                found.append(fenced)
            else:
                fenced = None
        elif fenced is not None:
            fenced.lines.append(line)
        elif indented and found and found[-1].line + len(found[-1].lines) + 1 == number:
            found[-1].lines.append(line[4:])
        elif indented:
            found.append(Block(number - 1, "", [line[4:]]))
    return found


def prose(page: Path) -> str:
    """The page without its blocks."""
    lines = page.read_text().splitlines()
    for block in blocks(page):
        # An indented block begins after a blank line, a fenced one has two fences.
        size = len(block.lines) + (2 if block.language else 1)
        lines[block.line - 1 : block.line - 1 + size] = [""] * size
    return "\n".join(lines)


def commands(page: Path, program: str) -> list[Command]:
    """The page's commands of one program, in their order; of running text last."""
    return [c for c in (*_in_blocks(page), *_in_prose(page)) if c.text.startswith(program + " ")]


def _in_blocks(page: Path) -> Iterator[Command]:
    for block in blocks(page):
        status, error = 200, ""
        for number, line in _logical_lines(block):
            if told := _TOLD.match(line):
                status, error = int(told[1]), told[2]
            elif line.startswith(_PROGRAMS):
                where = f"{page.name}:{number}"
                yield Command(where, line, block.language == "sh", True, status, error)
                status, error = 200, ""


def _logical_lines(block: Block) -> Iterator[tuple[int, str]]:
    """The lines with their numbers; what a backslash continues is one."""
    text = ""
    for number, line in enumerate(block.lines, block.line + 1):
        text += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield number, text
            text = ""


def _in_prose(page: Path) -> Iterator[Command]:
    for code in codes(prose(page)):
        # `curl -N` names an option, not a request.
        if code.startswith(_PROGRAMS) and not re.fullmatch(r"curl -\w", code):
            yield Command(page.name, code, runs=False, whole=False)


def curl(command: Command) -> Curl:
    """What the command asks. Raises ValueError if its body is no JSON."""
    parser = argparse.ArgumentParser("curl", exit_on_error=False)
    parser.add_argument("url")
    parser.add_argument("-d", dest="data")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-H", dest="headers", action="append")
    parser.add_argument("-N", action="store_true")
    parser.add_argument("-s", action="store_true")
    given = parser.parse_args(command.words())
    url = given.url if "://" in given.url else f"http://{given.url}"
    body = None if given.data is None else json.loads(given.data)
    return Curl(given.method or ("POST" if given.data else "GET"), urlsplit(url).path, body)


def codes(text: str) -> list[str]:
    return _CODE.findall(text)


def links(page: Path) -> list[str]:
    return _LINK.findall(page.read_text())


def anchors(page: Path) -> set[str]:
    """Of the page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tables(page: Path, first: str) -> list[list[dict[str, str]]]:
    """Rows by heading of each table whose first column has that heading."""
    found: list[list[dict[str, str]]] = []
    header: list[str] | None = None
    for line in prose(page).splitlines():
        if not line.startswith("|"):
            header = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if header is None:
            header = cells
            found.append([])
        elif set(line) - set("|- "):
            found[-1].append(dict(zip(header, cells, strict=True)))
    return [rows for rows in found if rows and next(iter(rows[0])) == first]


def named(rows: list[dict[str, str]]) -> list[str]:
    """The names that the rows document: the code in their first cells."""
    return [code for row in rows for code in codes(next(iter(row.values())))]
