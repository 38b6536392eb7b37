"""What a run leaves behind: tables on the terminal, JSON, pictures, its section of a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from bench.residency.figures import Result
from bench.residency.options import Options
from bench.residency.pictures import pictures
from bench.residency.summary import rows
from bench.residency.table import refusals, tables
from provision.failure import Failure


def report(result: Result, options: Options) -> None:
    """Prints, and writes what the options ask for."""
    text = _text(result)
    print(f"\n{text}")
    drawn = pictures(rows(result.visits), result.title)
    if options.json:
        _write_json(options.json, result)
    if options.svg:
        _write_pictures(options.svg, drawn)
    if options.docs:
        folder = options.docs.parent / options.docs.stem
        folder.mkdir(exist_ok=True)
        _write_json(folder / f"{options.name}.json", result)
        _write_pictures(folder / options.name, drawn)
        section = f"{text}\n{_links(options, drawn)}"
        page = options.docs.read_text()
        options.docs.write_text(with_section(page, options.name, section))


def read(path: Path) -> Result:
    """Raises Failure if it is no result of a run."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError) as error:
        raise Failure(f"{path}: {error}") from error


def _text(result: Result) -> str:
    summary = rows(result.visits)
    notes = [*result.about, *refusals(summary)]
    return f"{tables(summary)}\n\n" + "".join(f"- {note}\n" for note in notes)


def _write_json(path: Path, result: Result) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def _write_pictures(stem: Path, drawn: Mapping[str, str]) -> None:
    for name, svg in drawn.items():
        stem.with_name(f"{stem.name}-{name}.svg").write_text(svg)


def _links(options: Options, drawn: Mapping[str, str]) -> str:
    """As Markdown, relative to the page."""
    assert options.docs is not None
    stem = f"{options.docs.stem}/{options.name}"
    shown = [f"![{name}]({stem}-{name}.svg)" for name in drawn]
    return "\n\n".join([*shown, f"Every figure of every round: [{stem}.json]({stem}.json)"]) + "\n"


def with_section(page: str, name: str, section: str) -> str:
    """The page with what stands between the run's two markers replaced. Raises Failure."""
    begin, end = markers(name)
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise Failure(
            f"--docs: the page has no place for {name}; write where it belongs:\n{begin}\n{end}"
        )
    return f"{before}{begin}\n{section}{end}{after}"


def markers(name: str) -> tuple[str, str]:
    return f"<!-- bench:begin {name} -->", f"<!-- bench:end {name} -->"
