"""What the worker refuses, as types: a model that cannot load, a request that cannot run."""

from __future__ import annotations

BUILD_HINT = "build and install it with scripts/build_llama"


class LoadRefused(Exception):
    """The model cannot be loaded as asked; the message is for the operator."""


class ContextRefused(Exception):
    """llama.cpp opened no context, for one as memory is short; no fault of the request."""


class RequestRefused(Exception):
    """The request cannot run as asked; `param` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
