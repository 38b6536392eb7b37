"""`corral serve`: checks, puts the daemon together, and ends it in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Mapping

import uvicorn
import uvloop

from manifests.store import Store
from server.app import build_app
from server.catalog import Catalog
from server.core import ServingCore
from server.ledgers import Ledgers
from server.metrics import Metrics
from server.scheduler import Scheduler
from server.services import Services
from server.settings import Settings
from server.spare import Spare
from server.templates import Templates
from server.version import check_library
from server.working_sets import WorkingSets

log = logging.getLogger("corral")

# Requests may run this long after a signal. With the time to end workers (process.Graces) that
# is 33 s: compose.yaml's stop_grace_period and systemd's default of 90 s are longer.
GRACE_SECONDS = 20
# For what the core's end does not reach: a slow client, a pull in its thread.
_CONNECTION_SECONDS = GRACE_SECONDS + 5


class _Server(uvicorn.Server):
    """uvicorn, whose signals also begin the end of the core."""

    def __init__(self, config: uvicorn.Config, services: Services, core: ServingCore) -> None:
        super().__init__(config)
        self._services = services
        self._core = core
        self._closing: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """In the loop, and not raised again: the process ends by returning."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def finish(self) -> None:
        """Returns when no worker process is left."""
        await (self._closing or self._core.close())

    def _on_signal(self) -> None:
        """The first lets running requests end, a second ends them."""
        if self._closing is None:
            self._services.stopping = True
            self._closing = asyncio.create_task(self._core.close())
            self.should_exit = True
        else:
            self._core.hurry()


def serve(flags: Mapping[str, str]) -> None:
    """Serve until a signal. The flags are variables that overrule the environment's.

    Raises SettingsError, LibraryError, ManifestError.
    """
    settings, warnings = Settings.from_environ({**os.environ, **flags})
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    for warning in warnings:
        log.warning("%s", warning)
    library = check_library()
    store = Store(settings.home)
    log.info("llama-cpp-python %s, models in %s", library, settings.home)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, store))


async def _serve(settings: Settings, store: Store) -> None:
    with (
        contextlib.closing(Ledgers()) as ledgers,
        contextlib.closing(WorkingSets(store.working_sets)) as working_sets,
    ):
        metrics = Metrics(ledgers)
        scheduler = Scheduler(
            max_queue=settings.max_queue,
            max_loaded=settings.max_loaded_models,
            request_timeout=settings.request_timeout or None,
            decode_timeout=settings.decode_timeout,
        )

        def is_busy() -> bool:
            return core.is_busy()

        spare = Spare(is_busy=is_busy)
        core = ServingCore(
            scheduler,
            metrics,
            spawn=spare.spawn,
            working_sets=working_sets,
            grace=GRACE_SECONDS,
        )
        services = Services(
            settings, store, Catalog(store, settings), core, Templates(), measures=metrics
        )
        config = uvicorn.Config(
            build_app(services),
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_CONNECTION_SECONDS,
        )
        # Ends the process with a line in the log if the address is taken.
        listener = config.bind_socket()
        # uvicorn lets children inherit it: one that outlives the daemon would keep the address.
        listener.set_inheritable(False)
        server = _Server(config, services, core)
        spare.refill()
        try:
            await server.serve(sockets=[listener])
        finally:
            await server.finish()
            await spare.close()
            listener.close()
