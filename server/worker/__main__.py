"""The worker process of one model: `python -m server.worker --fd N`, N its end of a socket pair."""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from server.protocol import (
    Apply,
    Cancel,
    Embed,
    Generate,
    Load,
    LoadFailed,
    Shutdown,
    ToDaemon,
)
from server.worker.channel import Channel
from server.worker.refusals import BUILD_HINT, LoadRefused

if TYPE_CHECKING:
    from server.worker.dispatch import Dispatcher

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
    load = _loader()
    message = channel.receive(wait=True)
    if isinstance(message, Shutdown):
        return 0
    assert isinstance(message, Load), message
    try:
        requests = load(message, channel.send, stack)
    except LoadRefused as error:
        channel.send(LoadFailed(str(error)))
        return EXIT_FAILED
    except Exception as error:
        logger.exception("%s could not be loaded", message.model)
        channel.send(LoadFailed(repr(error)))
        return EXIT_FAILED
    try:
        _serve(requests, channel)
    except Exception as error:
        logger.exception("%s stops serving", message.model)
        requests.end_all("error", f"the worker failed: {error!r}")
        return EXIT_FAILED
    return 0


def _loader() -> Callable[[Load, Callable[[ToDaemon], None], ExitStack], Dispatcher]:
    """loading.load. Imported before a model is asked for: a spare worker waits with it."""
    try:
        # Without llama_cpp the daemon must still be told why nothing loads.
        from server.worker.loading import load  # noqa: PLC0415
    except ImportError as error:
        why = f"llama_cpp does not load ({error}): {BUILD_HINT}"

        def refuse(*_: object) -> Dispatcher:
            raise LoadRefused(why)

        return refuse
    return load


def _serve(requests: Dispatcher, channel: Channel) -> None:
    while True:
        while (message := channel.receive(wait=requests.idle, seconds=requests.due_in)) is not None:
            match message:
                case Generate():
                    requests.on_generate(message)
                case Embed():
                    requests.on_embed(message)
                case Cancel():
                    requests.on_cancel(message.id)
                case Apply():
                    requests.on_apply(message)
                case Shutdown():
                    requests.end_all("cancelled")
                    requests.finish()
                    return
                case Load():
                    raise AssertionError("a second Load")
        requests.step()


if __name__ == "__main__":
    sys.exit(main())
