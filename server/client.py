"""The command line's way to the daemon: requests, streams of lines, and its errors as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from server.settings import Settings

# A load from a slow disk or the copy of a large model says nothing for a long while.
_READ_SECONDS = 3600.0


class DaemonError(Exception):
    """The daemon refused, or cannot be reached; the message is for the user."""


class Daemon:
    """A client of the daemon that the settings name."""

    def __init__(self, settings: Settings, transport: httpx.BaseTransport | None = None) -> None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
        self.url = f"http://[{host}]:{settings.port}" if ":" in host else _url(host, settings.port)
        headers = {}
        if settings.api_keys:
            headers["Authorization"] = f"Bearer {settings.api_keys[0]}"
        timeout = httpx.Timeout(_READ_SECONDS, connect=5)
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout, transport=transport
        )

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._ask("POST", path, body)

    def delete(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._ask("DELETE", path, body)

    def lines(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The objects of a stream. Raises DaemonError also for one that ends in an error."""
        try:
            with self._http.stream("POST", path, json=body) as answer:
                if answer.is_error:
                    answer.read()
                    raise _refusal(answer)
                for line in answer.iter_lines():
                    row = json.loads(line)
                    if "error" in row:
                        raise DaemonError(str(row["error"]))
                    yield row
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        try:
            answer = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if answer.is_error:
            raise _refusal(answer)
        return answer.json() if answer.content else None

    def _unreachable(self, error: httpx.TransportError) -> DaemonError:
        return DaemonError(
            f"no answer from {self.url}: {error}; is `corral serve` running?"
            " CORRAL_HOST and CORRAL_PORT say where"
        )


def _url(host: str, port: int) -> str:
    return f"http://{host}:{port}"


def _refusal(answer: httpx.Response) -> DaemonError:
    """The error's message in whichever format the route has."""
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        return DaemonError(f"{answer.url} answered {answer.status_code}")
    return DaemonError(str(error["message"] if isinstance(error, dict) else error))
