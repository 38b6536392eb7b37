"""The one table from exception to HTTP answer, in the format of the route's family."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from manifests import errors as manifest_errors
from server.errors import BadRequest, LoadError, ModelNotFound, ServingError
from server.framing import json_response


class OpenAIErrorBody(msgspec.Struct):
    message: str
    type: str
    code: str | None
    param: str | None


class OpenAIError(msgspec.Struct):
    error: OpenAIErrorBody


class OllamaError(msgspec.Struct):
    error: str


class NoRoute(ServingError):
    """Nothing stands at the path, or not for this method."""

    type = "invalid_request_error"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class StorageError(ServingError):
    """The disk refused; the message names the path and the reason."""

    code = "storage_error"


class StorageFull(StorageError):
    status = 507


def openai_error(error: ServingError) -> OpenAIError:
    return OpenAIError(OpenAIErrorBody(error.message, error.type, error.code, error.param))


def ollama_error(error: ServingError) -> OllamaError:
    return OllamaError(error.message)


def _passed(error: ServingError) -> ServingError:
    return error


def _manifest(kind: type[ServingError], param: str | None = None) -> Callable[..., ServingError]:
    def convert(error: manifest_errors.ManifestError) -> ServingError:
        return kind(error.message, param=param)

    return convert


def _keyed(error: manifest_errors.UnknownKey | manifest_errors.InvalidValue) -> ServingError:
    return BadRequest(error.message, param=error.key)


def _http(error: HTTPException) -> ServingError:
    return NoRoute(str(error.detail), error.status_code)


def _unforeseen(_error: Exception) -> ServingError:
    return ServingError("internal error; the daemon's log tells more")


TABLE: Mapping[type[Exception], Callable[..., ServingError]] = {
    ServingError: _passed,
    HTTPException: _http,
    manifest_errors.InvalidName: _manifest(BadRequest, "model"),
    manifest_errors.ModelMissing: _manifest(ModelNotFound, "model"),
    manifest_errors.InvalidGGUF: _manifest(BadRequest),
    manifest_errors.ModelfileError: _manifest(BadRequest, "modelfile"),
    manifest_errors.UnknownKey: _keyed,
    manifest_errors.InvalidValue: _keyed,
    manifest_errors.InvalidManifest: _manifest(LoadError),
    manifest_errors.StoreFull: _manifest(StorageFull),
    manifest_errors.StoreError: _manifest(StorageError),
    manifest_errors.ManifestError: _manifest(BadRequest),
    Exception: _unforeseen,
}


def as_serving_error(error: Exception) -> ServingError:
    """What the client is told; the most specific row of the table."""
    kind = next(kind for kind in type(error).__mro__ if kind in TABLE)
    return TABLE[kind](error)


def answer(request: Request, error: Exception) -> Response:
    """The response for an exception that left a route."""
    told = as_serving_error(error)
    path = request.url.path
    body = ollama_error(told) if path.startswith("/api/") else openai_error(told)
    headers: dict[str, str] = {}
    if told.retry_after is not None:
        headers["Retry-After"] = str(told.retry_after)
    if told.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, HTTPException):
        headers.update(error.headers or {})
    return json_response(body, told.status, headers)


async def _answer(request: Request, error: Exception) -> Response:
    return answer(request, error)


def install(app: FastAPI) -> None:
    """Give every exception of the table its answer."""
    for kind in TABLE:
        app.add_exception_handler(kind, _answer)
