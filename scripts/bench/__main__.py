"""Measures and reports, in an environment with corral's packages: python scripts/bench ARGUMENT...

scripts/bench_serving makes that environment, and passes on a model file and a llama-server.
"""

import signal
import sys
from importlib import import_module
from pathlib import Path


def main() -> None:
    # Started as a folder, Python puts the folder itself on the path, not the one that holds it.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    # A run that is told to end ends its servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failure = import_module("provision.failure").Failure
    try:
        sys.exit(import_module("bench.command").main(sys.argv[1:]))
    except failure as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


main()
