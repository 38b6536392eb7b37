"""Runs other programs: quietly while they succeed, with all they said when they fail."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from provision.failure import Failure

# How ninja counts its steps; pip indents what it passes on.
_STEP = re.compile(r"\s*\[(\d+)/(\d+)\] ")
_TAIL_LINES = 25


def say(text: str) -> None:
    """One stage of the work, told as it begins. On stderr: stdout belongs to the results."""
    print(f"==> {text}", file=sys.stderr, flush=True)


def quiet(
    command: Sequence[str | Path],
    what: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run to the end and give what it printed. Raises Failure with all of it."""
    done = subprocess.run(
        command,
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failure(f"{what} failed (exit status {done.returncode}):\n{done.stdout.rstrip()}")
    return done.stdout


def logged(command: Sequence[str | Path], what: str, log: Path, env: Mapping[str, str]) -> None:
    """Run with all output in a log and ninja's steps shown. Raises Failure naming the log."""
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        show_steps(_copied(process.stdout, file), sys.stderr)
    if process.returncode:
        tail = "\n".join(log.read_text().splitlines()[-_TAIL_LINES:])
        raise Failure(f"{what} failed; its last lines:\n{tail}\nAll of it: {log}")


def _copied(lines: Iterable[str], file: TextIO) -> Iterable[str]:
    for line in lines:
        file.write(line)
        yield line


def show_steps(lines: Iterable[str], out: TextIO) -> None:
    """On a terminal one line that moves, elsewhere a line for each tenth of the way."""
    shown = 0
    for line in lines:
        if not (found := _STEP.match(line)):
            continue
        step, total = int(found[1]), int(found[2])
        if out.isatty():
            end = "\n" if step == total else ""
            print(f"\r    [{step}/{total}]", end=end, file=out, flush=True)
        elif (tenth := 10 * step // total) > shown:
            shown = tenth
            print(f"    [{step}/{total}]", file=out, flush=True)
