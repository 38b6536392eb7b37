"""scripts/serve before the daemon: where it will listen, and what it tells the caller."""

from __future__ import annotations

import json
import shlex
import socket

import pytest

from provision import environment, serve
from provision.failure import Failure


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CORRAL_HOST", "CORRAL_PORT", "CORRAL_API_KEYS"):
        monkeypatch.delenv(name, raising=False)


def test_the_address_comes_from_arguments_then_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert serve.address([]) == ("127.0.0.1", 8080)
    monkeypatch.setenv("CORRAL_PORT", "9000")
    assert serve.address([]) == ("127.0.0.1", 9000)
    assert serve.address(["--port=9001", "--host", "0.0.0.0"]) == ("0.0.0.0", 9001)


@pytest.mark.parametrize("argument", ["--prot=1", "--port=high", "model.gguf"])
def test_a_wrong_argument_is_told_before_anything_is_built(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        serve.main([argument])
    assert argument.rsplit("=", maxsplit=1)[-1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
    ],
)
def test_the_url_reaches_a_wildcard_address(host: str, url: str) -> None:
    assert serve.base_url(host, 80) == url


def test_the_curl_line_is_one_a_shell_and_the_api_can_read() -> None:
    words = shlex.split(serve.curl_line("http://127.0.0.1:80"))
    assert words[:2] == ["curl", "http://127.0.0.1:80/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == serve.MODEL


def test_a_taken_port_is_told_before_anything_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "prepare", lambda: pytest.fail("set up anyway"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            Failure, match=rf"port {port} on 127.0.0.1 is in use.*--port {port + 1}"
        ):
            serve.main(["--port", str(port)])
