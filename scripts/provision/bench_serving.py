"""The command bench_serving: everything set up, then the measurement in .venv's Python."""

from __future__ import annotations

import os

from bench.options import Options, parse
from provision import environment, llama_server, venvs
from provision.failure import Failure
from provision.models import file_of, refuse_missing
from provision.paths import ROOT, VENV


def main(argv: list[str]) -> int:
    options = parse(argv)
    _refuse_missing(options)
    environment.prepare()
    # A later option overrules an earlier one.
    more = ["--model", str(file_of(options.model))]
    if options.starts_llama_server:
        more += ["--llama-server", str(options.llama_server or llama_server.program())]
    python = venvs.python(VENV)
    arguments = [str(python), str(ROOT / "scripts" / "bench"), "serving", *argv, *more]
    os.execve(python, arguments, venvs.environment(VENV))


def _refuse_missing(options: Options) -> None:
    """Told now and not after a build of minutes. Raises Failure."""
    refuse_missing("--model", options.model)
    program = options.llama_server
    if program and not os.access(program, os.X_OK):
        raise Failure(f"--llama-server {program}: not a program")
