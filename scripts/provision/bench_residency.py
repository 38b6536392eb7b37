"""The command bench_residency: everything set up, then the measurement in .venv's Python."""

from __future__ import annotations

import os

from bench.residency.options import Options, parse
from provision import environment, venvs
from provision.models import SMOLLM2, fetch, file_of, refuse_missing
from provision.paths import ROOT, VENV


def main(argv: list[str]) -> int:
    options = parse(argv)
    if options.source is None and options.made_gb is None:
        refuse_missing("--model", options.model)
    environment.prepare()
    python = venvs.python(VENV)
    arguments = [str(python), str(ROOT / "scripts" / "bench"), "residency", *argv, *_more(options)]
    os.execve(python, arguments, venvs.environment(VENV))


def _more(options: Options) -> list[str]:
    """The files that the measurement needs. A later option overrules an earlier one."""
    if options.source:
        return []
    if options.made_gb is None:
        # The name comes from what was given.
        return ["--model", str(file_of(options.model)), "--name", options.name]
    return ["--tokenizer", str(options.tokenizer or fetch(SMOLLM2))]
