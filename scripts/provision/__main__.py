"""Runs one command: python scripts/provision COMMAND [ARGUMENT...]."""

import sys
from importlib import import_module
from pathlib import Path

COMMANDS = (
    *("bench_residency", "bench_serving", "build_llama", "check", "image_build", "import_model"),
    *("lock", "serve", "test"),
)


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - whatever python3 is, it comes through here
        found = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"Python 3.11 or newer is needed, this is {found}: set PYTHON=python3.11")
    # Started as a folder, Python puts the folder itself on the path, not the one that holds it.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(f"usage: provision {{{','.join(COMMANDS)}}} [ARGUMENT...]")
    failure = import_module("provision.failure").Failure
    try:
        sys.exit(import_module(f"provision.{sys.argv[1]}").main(sys.argv[2:]))
    except failure as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


main()
