"""Measures and reports, in an environment with corral's packages: scripts/bench WHAT ARGUMENT...

scripts/bench_serving and scripts/bench_residency make that environment, and pass on a model
file and whatever else the measurement needs.
"""

import signal
import sys
from importlib import import_module
from pathlib import Path

COMMANDS = {"serving": "bench.command", "residency": "bench.residency.command"}


def main() -> None:
    # Started as a folder, Python puts the folder itself on the path, not the one that holds it.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(f"usage: bench {{{','.join(COMMANDS)}}} [ARGUMENT...]")
    # A run that is told to end ends its servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failure = import_module("provision.failure").Failure
    try:
        sys.exit(import_module(COMMANDS[sys.argv[1]]).main(sys.argv[2:]))
    except failure as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


main()
