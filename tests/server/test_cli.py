"""The command line against the application, without a socket between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fake_core import READY, FakeCore

from manifests.names import parse_name
from manifests.store import Store
from server import cli, version
from server.app import build_app
from server.calls import LoadedModel
from server.client import Daemon
from server.protocol import PinReport
from server.services import Services
from server.settings import Settings
from server.tables import distance, size, table
from server.templates import Templates

Corral = Callable[..., int]


class InProcess(httpx.BaseTransport):
    """Runs each request on an event loop of its own."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return asyncio.run(self._answer(request))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        # Their processes belong to the loop that started them.
        self._services.templates = Templates()
        answer = await httpx.ASGITransport(build_app(self._services)).handle_async_request(request)
        content = await answer.aread()
        await self._services.templates.close()
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)


@pytest.fixture
def corral(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[Corral]:
    def daemon(settings: Settings) -> Daemon:
        return Daemon(settings, InProcess(services))

    monkeypatch.setattr(cli, "Daemon", daemon)
    yield lambda *argv: cli.main(argv)


def test_list(corral: Corral, capsys: pytest.CaptureFixture[str]) -> None:
    assert corral("list") == 0
    header, base, chatty = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "ID", "SIZE", "QUANTIZATION", "MODIFIED"]
    assert base.startswith("base:latest ")
    assert "1.0 KB" in chatty


def test_ps_has_resident_and_locked(
    corral: Corral, core: FakeCore, services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = [asyncio.run(services.catalog.model(name)).spec() for name in ("chatty", "base")]
    core.models = [LoadedModel(specs[0], 4711, READY, 0, 0, None)]
    core.models.append(LoadedModel(specs[1], 4712, None, 0, 0, None))
    assert corral("ps") == 0
    header, ready, loading = capsys.readouterr().out.splitlines()
    assert header.split() == [
        *("NAME", "PID", "SIZE", "MODE", "RESIDENT", "LOCKED", "CONTEXT", "UNTIL")
    ]
    assert ready.split()[1:10] == ["4711", "1.2", "KB", "eager", "7", "B", "3", "B", "4096"]
    assert loading.endswith("loading")
    assert "?" in loading


def test_ps_tells_of_a_lock_that_was_refused(
    corral: Corral, core: FakeCore, services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = asyncio.run(services.catalog.model("chatty")).spec()
    pin = PinReport(900, 3, 1, 0.0, 12, "locked 3 of 900 bytes: raise ulimit -l")
    core.models = [LoadedModel(spec, 4711, READY, 0, 0, None, pin)]
    assert corral("ps") == 0
    _, row, why = capsys.readouterr().out.splitlines()
    assert "3 B of 900 B" in row
    assert why == "chatty:latest: locked 3 of 900 bytes: raise ulimit -l"


def test_show(corral: Corral, capsys: pytest.CaptureFixture[str]) -> None:
    assert corral("show", "chatty") == 0
    out = capsys.readouterr().out
    assert "weight_residency   eager   default" in out
    assert "llama.context_length" in out
    assert corral("show", "chatty", "--json") == 0
    assert json.loads(capsys.readouterr().out)["capabilities"] == ["completion", "embedding"]


def test_edit_sorts_keys_into_sections(
    corral: Corral, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system = tmp_path / "system.txt"
    system.write_text("Be brief.")
    changes = ["weight_residency=lazy", "temperature=0.5", f"system=@{system}", 'stop=["a","b"]']
    assert corral("edit", "chatty", *changes) == 0
    assert "loader.weight_residency   next_load" in capsys.readouterr().out
    stored = store.get(parse_name("chatty"))
    assert (stored.loader.weight_residency, stored.parameters.temperature) == ("lazy", 0.5)
    assert (stored.system, stored.parameters.stop) == ("Be brief.", ("a", "b"))
    assert corral("edit", "chatty", "loader.weight_residency=", "system=") == 0
    stored = store.get(parse_name("chatty"))
    assert (stored.loader.weight_residency, stored.system) == (None, None)
    assert corral("edit", "chatty", "num_ctx=64", "--reload", "loader.num_thread=2") == 0
    stored = store.get(parse_name("chatty"))
    assert (stored.loader.n_ctx, stored.loader.n_threads) == (64, 2)
    assert corral("edit", "chatty", "temprature=1") == 1
    assert "temperature" in capsys.readouterr().err
    assert corral("edit", "chatty", "nothing") == 1


def test_create_cp_rm_stop(
    corral: Corral,
    core: FakeCore,
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text("FROM chatty\nPARAMETER temperature 0\n")
    assert corral("create", "made", "-f", str(modelfile)) == 0
    assert "success" in capsys.readouterr().err
    assert corral("cp", "made", "copied") == 0
    assert corral("rm", "made", "copied") == 0
    assert [str(name) for name in store.names()] == ["base:latest", "chatty:latest"]
    assert corral("rm", "made") == 1
    assert "not found" in capsys.readouterr().err
    assert corral("stop", "chatty") == 0
    assert core.unloads[-1] == "chatty:latest"
    assert corral("create", "made", "-f", str(tmp_path / "nowhere")) == 1


def test_pull_tells_what_is_wrong(
    corral: Corral, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"x" * 100)
    assert corral("pull", "new", str(path)) == 1
    assert "bad.gguf" in capsys.readouterr().err


def test_run_chats_where_there_is_a_template(
    corral: Corral, core: FakeCore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert corral("run", "chatty", "Hi", "there") == 0
    assert capsys.readouterr().out == "Hello\n"
    assert corral("run", "base", "Hi", "--keepalive", "5m") == 0
    assert [call.prompt for call in core.calls] == ["<user>Hi there<assistant>", "Hi"]
    assert core.calls[1].spec.keep_alive == 300
    assert corral("run", "--keepalive", "10m", "base", "some", "--", "-x") == 0
    assert corral("run", "base", "--keepalive", "10m", "some", "words") == 0
    assert [call.prompt for call in core.calls[2:]] == ["some -x", "some words"]
    assert core.calls[3].spec.keep_alive == 600


def test_run_converses_over_standard_input(
    corral: Corral, core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["one\n", "\n", "two\n", "/bye\n"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: next(lines), raising=False)
    assert corral("run", "chatty") == 0
    assert core.calls[1].prompt == "<user>one<assistant>Hello<user>two<assistant>"


def test_residency(
    corral: Corral, core: FakeCore, services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = asyncio.run(services.catalog.model("chatty")).spec()
    core.models = [LoadedModel(spec, 4711, READY, 0, 0, None)]
    assert corral("residency", "chatty") == 0
    out = capsys.readouterr().out
    rows = dict(line.split(maxsplit=1) for line in out.splitlines()[1:13])
    assert rows["weight_residency"] == "eager"
    assert (rows["resident_bytes"], rows["anonymous_bytes"]) == ("7 B", "?")
    bars = {line.split()[0]: line.split()[-1] for line in out.splitlines()[13:] if line}
    assert bars["LAYER"] == "ATTN"
    assert bars["0"] == "########========--------........"
    assert corral("residency", "chatty", "--json") == 0
    (cell,) = json.loads(capsys.readouterr().out)["map"]
    assert (cell["layer"], cell["class"], cell["bytes"]) == (0, "attn", 32)
    assert corral("residency", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["model"] == "chatty:latest" and "map" not in row


def test_no_daemon_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_PORT", "1")
    assert cli.main(["list"]) == 1
    assert "is `corral serve` running?" in capsys.readouterr().err


def test_serve_refuses_a_bad_variable_and_a_foreign_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    assert cli.main(["serve", "--port", "70000"]) == 1
    assert "CORRAL_PORT='70000' cannot be used; allowed" in capsys.readouterr().err
    monkeypatch.setattr(version, "version", lambda _name: "0.3.36")
    assert cli.main(["serve", "--port", "0"]) == 1
    assert "run scripts/build_llama" in capsys.readouterr().err


def test_the_library_is_known_by_its_local_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "version", lambda _name: "0.3.36+corral.h1")
    assert version.check_library() == "0.3.36+corral.h1"


def test_sizes_times_and_tables() -> None:
    from datetime import UTC, datetime  # noqa: PLC0415

    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert [size(n) for n in (None, 0, 999, 1000, 253_100_000)] == [
        "?",
        "0 B",
        "999 B",
        "1.0 KB",
        "253.1 MB",
    ]
    assert distance("2026-01-01T00:05:30Z", now) == "in 5 minutes"
    assert distance("2025-12-31T23:00:00Z", now) == "1 hour ago"
    assert distance("2318-01-01T00:00:00Z", now) == "never"
    assert table(["A", "B"], [["aa", "b"]]) == "A    B\naa   b"
