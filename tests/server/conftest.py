"""The application over a fake core and a store with two models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fake_core import FakeCore
from made_store import TEMPLATE, manifest

from manifests.names import parse_name
from manifests.store import Store
from residency.class_map import Backing, Cell
from residency.classes import Place, TensorClass
from residency.file_cache import Source
from residency.ledger import Ledger
from server.app import build_app
from server.catalog import Catalog
from server.errors import ModelNotFound
from server.services import Services
from server.settings import Settings
from server.templates import Templates

CELL = Cell(Place(0, TensorClass.ATTN), 32, dict.fromkeys(Backing, 0), 24, 16, 8)
LEDGER = Ledger(10, 9, 8, 7, 6, None, 4, 0, 3, 2, 1, Source.MINCORE)


class FakeMeasures:
    def render(self) -> bytes:
        return b"corral_models_loaded 0\n"

    def ledger(self, name: str) -> Ledger:
        if name != "chatty:latest":
            raise ModelNotFound(f"{name} is not loaded")
        return LEDGER

    def class_map(self, name: str) -> list[Cell]:
        self.ledger(name)
        return [CELL]


@pytest.fixture
def core() -> FakeCore:
    return FakeCore()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture
def store(settings: Settings) -> Store:
    """`chatty` has a template, `base` has none."""
    store = Store(settings.home)
    store.put(parse_name("chatty"), manifest(TEMPLATE))
    store.put(parse_name("base"), manifest(None))
    return store


@pytest.fixture
def services(settings: Settings, store: Store, core: FakeCore) -> Services:
    return Services(settings, store, Catalog(store, settings), core, Templates(), FakeMeasures())


@pytest.fixture
async def client(services: Services) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(build_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://corral") as client:
        yield client
    await services.templates.close()
