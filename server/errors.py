"""What can go wrong with a request, as types. server/failures.py turns them into HTTP."""

from __future__ import annotations


class ServingError(Exception):
    """Root of all errors that a client is told about."""

    status = 500
    type = "server_error"
    code: str | None = None
    retry_after: int | None = None
    """Seconds after which the same request may fare better; None: nobody knows."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class BadRequest(ServingError):
    """The request cannot be served as asked, however often it is sent."""

    status = 400
    type = "invalid_request_error"


class Unauthorized(ServingError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class ModelNotFound(ServingError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class QueueFull(ServingError):
    status = 429
    type = "rate_limit_error"
    code = "queue_full"
    retry_after = 1


class ShuttingDown(ServingError):
    status = 503
    code = "shutting_down"
    retry_after = 5

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class TimedOut(ServingError):
    """The request had no end by its deadline; it is not run any further."""

    status = 504
    code = "request_timeout"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the request has no end after the {seconds:g} seconds of CORRAL_REQUEST_TIMEOUT"
        )


class EndedEarly(ServingError):
    """The worker ended the request before it was whole, and nobody here had asked for it."""

    status = 503
    code = "ended_early"


class WorkerWedged(ServingError):
    """The model's process did not speak for too long; it is killed, and the next request loads
    the model again."""

    code = "worker_wedged"


class LoadError(ServingError):
    """The model could not be loaded; the next request tries again."""

    code = "model_load_failed"


class WorkerDied(ServingError):
    """The model's process ended under the request; the next request loads it again."""

    code = "worker_died"
