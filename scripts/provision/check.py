"""The command check: format, lint, types, container files, and whether the patches apply."""

from __future__ import annotations

import argparse

from provision import environment, llama
from provision.failure import Failure
from provision.paths import ROOT, VENV
from provision.run import quiet, say

_COMMANDS = (
    ("ruff", "format", "--check", "."),
    ("ruff", "check", "."),
    ("mypy",),
    ("hadolint", "--no-color", "Dockerfile"),
    ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"),
)


def main(argv: list[str]) -> int:
    argparse.ArgumentParser("check", description=__doc__).parse_args(argv)
    environment.prepare(dev=True, llama=False)
    run()
    return 0


def run() -> None:
    """All checks, also after one has failed. Raises Failure with what the failed ones said."""
    failures = []
    for command in _COMMANDS:
        say(" ".join(command))
        try:
            quiet([VENV / "bin" / command[0], *command[1:]], command[0], cwd=ROOT)
        except Failure as error:
            failures.append(str(error))
    say("patch series")
    try:
        llama.check_series()
    except Failure as error:
        failures.append(str(error))
    if failures:
        raise Failure("\n\n".join(failures))
