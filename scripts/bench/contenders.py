"""The servers that are compared: how each is started on the same model, and stopped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench import pages
from bench.process import free_port, served

MODEL_NAME = "bench"


@dataclass(frozen=True)
class Setup:
    """What is the same for all servers that are started."""

    model: Path
    """The blob in home: one file for every server."""
    home: Path
    """corral's store; the servers' logs lie in it too."""
    threads: int
    slots: int
    n_ctx: int
    """KV cells of all slots together."""


class Contender(Protocol):
    @property
    def name(self) -> str: ...

    def describe(self) -> str:
        """How it was started, for the reader of the figures."""

    def serving(self) -> AbstractContextManager[str]:
        """Its URL, in a context that ends it. Raises Failure if it does not start."""


@dataclass(frozen=True)
class Corral:
    setup: Setup
    residency: str
    name: str = "corral"
    prefix: tuple[str, ...] = ()
    """Words before the command, such as those that put it into a cgroup."""

    def describe(self) -> str:
        return f"weight_residency {self.residency}: weights mapped, not repacked"

    def environment(self) -> dict[str, str]:
        """No setting of the caller's reaches it."""
        others = {key: text for key, text in os.environ.items() if not key.startswith("CORRAL_")}
        return others | {
            "CORRAL_HOME": str(self.setup.home),
            "CORRAL_NUM_PARALLEL": str(self.setup.slots),
            "CORRAL_CONTEXT_LENGTH": str(self.setup.n_ctx),
            "CORRAL_WEIGHT_RESIDENCY": self.residency,
            "CORRAL_KEEP_ALIVE": "-1",
        }

    @contextmanager
    def serving(self) -> Iterator[str]:
        pages.drop(self.setup.model)
        port = free_port()
        command = [*self.prefix, sys.executable, "-m", "server.cli", "serve", "--port", str(port)]
        log = self.setup.home / "corral.log"
        with served(command, f"http://127.0.0.1:{port}", log, self.environment()) as url:
            yield url


@dataclass(frozen=True)
class LlamaServer:
    setup: Setup
    program: Path
    repack: bool = True

    @property
    def name(self) -> str:
        return "llama-server" if self.repack else "llama-server --no-repack"

    def describe(self) -> str:
        return "weights copied into its own layout" if self.repack else "weights mapped as they are"

    def command(self, port: int) -> list[str]:
        setup = self.setup
        sizes = {"-np": setup.slots, "-c": setup.n_ctx, "-t": setup.threads}
        return [
            *(str(self.program), "-m", str(setup.model)),
            *("--host", "127.0.0.1", "--port", str(port), "--no-webui"),
            *(word for option, value in sizes.items() for word in (option, str(value))),
            *(() if self.repack else ("--no-repack",)),
        ]

    @contextmanager
    def serving(self) -> Iterator[str]:
        pages.drop(self.setup.model)
        port = free_port()
        log = self.setup.home / "llama-server.log"
        with served(self.command(port), f"http://127.0.0.1:{port}", log, os.environ) as url:
            yield url


@dataclass(frozen=True)
class Remote:
    """Runs already; neither its pages nor its process are fresh."""

    name: str
    url: str

    def describe(self) -> str:
        return f"{self.url}, started by someone else: pages and process as they were"

    @contextmanager
    def serving(self) -> Iterator[str]:
        yield self.url
