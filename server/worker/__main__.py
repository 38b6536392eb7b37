"""The worker process of one model: `python -m server.worker --fd N`, N its end of a socket pair."""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from server.protocol import Apply, Cancel, Generate, Load, LoadFailed, Shutdown
from server.worker.channel import Channel
from server.worker.refusals import BUILD_HINT, LoadRefused

if TYPE_CHECKING:
    from server.worker.engine import Engine

logger = logging.getLogger("worker")

EXIT_FAILED = 1


def main() -> int:
    # Level and name first: the daemon reads these lines and adds the time and the model.
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(prog="server.worker", description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    sock = socket.socket(fileno=parser.parse_args().fd)
    # Ctrl-C reaches the whole process group; the daemon decides when a worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ExitStack() as stack:
        return _work(Channel(sock), stack)


def _work(channel: Channel, stack: ExitStack) -> int:
    """Load, then serve until Shutdown. The exit status."""
    message = channel.receive(wait=True)
    if isinstance(message, Shutdown):
        return 0
    assert isinstance(message, Load), message
    try:
        engine = _load(message, channel, stack)
    except LoadRefused as error:
        channel.send(LoadFailed(str(error)))
        return EXIT_FAILED
    except Exception as error:
        logger.exception("%s could not be loaded", message.model)
        channel.send(LoadFailed(repr(error)))
        return EXIT_FAILED
    try:
        _serve(engine, channel)
    except Exception as error:
        logger.exception("%s stops serving", message.model)
        engine.end_all("error", f"the worker failed: {error!r}")
        return EXIT_FAILED
    return 0


def _load(message: Load, channel: Channel, stack: ExitStack) -> Engine:
    """Raises LoadRefused."""
    try:
        # Late: without llama_cpp the daemon must still be told why nothing loads.
        from server.worker.loading import load  # noqa: PLC0415
    except ImportError as error:
        raise LoadRefused(f"llama_cpp does not load ({error}): {BUILD_HINT}") from error
    return load(message, channel.send, stack)


def _serve(engine: Engine, channel: Channel) -> None:
    while True:
        while (message := channel.receive(wait=engine.idle)) is not None:
            match message:
                case Generate():
                    engine.on_generate(message)
                case Cancel():
                    engine.on_cancel(message.id)
                case Apply():
                    engine.on_apply(message)
                case Shutdown():
                    engine.end_all("cancelled")
                    return
                case Load():
                    raise AssertionError("a second Load")
        engine.step()


if __name__ == "__main__":
    sys.exit(main())
