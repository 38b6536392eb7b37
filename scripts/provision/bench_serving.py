"""The command bench_serving: everything set up, then the measurement in .venv's Python."""

from __future__ import annotations

import os
from pathlib import Path

from bench.options import KNOWN_MODELS, Options, parse
from provision import environment, llama_server, venvs
from provision.failure import Failure
from provision.models import GEMMA3, SMOLLM2, fetch
from provision.paths import ROOT, VENV


def main(argv: list[str]) -> int:
    options = parse(argv)
    _refuse_missing(options)
    environment.prepare()
    # A later option overrules an earlier one.
    more = ["--model", str(_model(options))]
    if options.starts_llama_server:
        more += ["--llama-server", str(options.llama_server or llama_server.program())]
    python = venvs.python(VENV)
    arguments = [str(python), str(ROOT / "scripts" / "bench"), *argv, *more]
    os.execve(python, arguments, venvs.environment(VENV))


def _refuse_missing(options: Options) -> None:
    """Told now and not after a build of minutes. Raises Failure."""
    if options.model not in KNOWN_MODELS and not Path(options.model).exists():
        raise Failure(f"--model {options.model}: no such file, nor {' or '.join(KNOWN_MODELS)}")
    program = options.llama_server
    if program and not os.access(program, os.X_OK):
        raise Failure(f"--llama-server {program}: not a program")


def _model(options: Options) -> Path:
    known = dict(zip(KNOWN_MODELS, (SMOLLM2, GEMMA3), strict=True))
    return fetch(known[options.model]) if options.model in known else Path(options.model)
