"""Keys, CORS, probes and the table of errors."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import httpx
import pytest

from manifests import errors as manifest_errors
from manifests.names import parse_name
from server.app import build_app
from server.failures import as_serving_error
from server.services import Services
from server.settings import Settings


def client_of(services: Services, **settings: object) -> httpx.AsyncClient:
    changed = dataclasses.replace(services.settings, **settings)  # type: ignore[arg-type]
    app = build_app(dataclasses.replace(services, settings=changed))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://corral")


async def test_keys_guard_all_but_the_probes(services: Services) -> None:
    client = client_of(services, api_keys=("one", "two"))
    for path in ("/health", "/ready", "/"):
        assert (await client.get(path)).status_code == 200
    for path in ("/v1/models", "/api/tags", "/metrics", "/api/residency"):
        for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "Basic one"}):
            refused = await client.get(path, headers=headers)
            assert refused.status_code == 401, path
            assert "one" not in refused.text
        for key in ("one", "two"):
            good = await client.get(path, headers={"Authorization": f"Bearer {key}"})
            assert good.status_code == 200, path
    odd = await client.get("/v1/models", headers={b"Authorization": "Bearer é".encode()})
    assert odd.status_code == 401
    assert odd.json()["error"]["code"] == "invalid_api_key"
    assert (await client.get("/api/tags")).json()["error"].startswith("a valid API key")


async def test_cors_for_the_origins_that_are_set(services: Services) -> None:
    client = client_of(services, cors_origins=("http://ui.example",))
    allowed = await client.get("/health", headers={"Origin": "http://ui.example"})
    assert allowed.headers["access-control-allow-origin"] == "http://ui.example"
    other = await client.get("/health", headers={"Origin": "http://other.example"})
    assert "access-control-allow-origin" not in other.headers
    ask = {"Origin": "http://ui.example", "Access-Control-Request-Method": "POST"}
    assert (await client.options("/v1/chat/completions", headers=ask)).status_code == 200


async def test_ready_says_why_not(services: Services) -> None:
    client = client_of(services)
    assert (await client.get("/ready")).status_code == 200
    for name in ("chatty", "base"):
        services.store.delete(parse_name(name))
    empty = await client.get("/ready")
    assert (empty.status_code, empty.json()["reason"][:18]) == (503, "no model is stored")
    stopping = build_app(dataclasses.replace(services, stopping=True))
    transport = httpx.ASGITransport(stopping)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as other:
        answer = await other.get("/ready")
        assert (answer.status_code, "shutting down" in answer.text) == (503, True)
        assert (await other.get("/health")).status_code == 200


async def test_metrics_are_prometheus_text(client: httpx.AsyncClient) -> None:
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "corral_models_loaded 0" in answer.text


async def test_an_error_nobody_foresaw_is_a_500_without_its_text(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise RuntimeError("secret path")

    monkeypatch.setattr(services.catalog, "models", fail)
    answer = await client_of(services).get("/api/tags")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "internal error" in answer.json()["error"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (manifest_errors.InvalidName("..", "starts with a dot"), 400),
        (manifest_errors.ModelMissing("x:latest"), 404),
        (manifest_errors.InvalidGGUF(Path("/x"), "is no GGUF"), 400),
        (manifest_errors.ModelfileError(3, "unknown"), 400),
        (manifest_errors.UnknownKey("a", "b", ["b"]), 400),
        (manifest_errors.InvalidValue("a", "wrong"), 400),
        (manifest_errors.InvalidManifest("x", "is not JSON"), 500),
        (manifest_errors.StoreFull(Path("/x"), 2, 1), 507),
        (manifest_errors.StoreError(Path("/x"), OSError(errno.EIO, "I/O error")), 500),
    ],
)
def test_errors_of_the_store_have_their_status(
    error: manifest_errors.ManifestError, status: int
) -> None:
    told = as_serving_error(error)
    assert (told.status, told.message) == (status, error.message)


def test_defaults_serve_the_loopback_only() -> None:
    assert Settings().host == "127.0.0.1"
