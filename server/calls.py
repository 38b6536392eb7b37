"""What a route asks of the serving core, and what comes back.

Routes know HTTP and build a Call; server/core.py carries it out. Neither side
sees the other's types.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from server.protocol import (
    FinishReason,
    Load,
    PinReport,
    Ready,
    Sampling,
    Timings,
    TokenLogprobs,
)


@dataclass(frozen=True)
class ModelSpec:
    """A model as it would be loaded now."""

    name: str
    """Canonical `name:tag`."""
    identity: str
    """Changes when other weights stand under the name; a loaded model of another identity
    is unloaded, once its requests have ended, before this one is served."""
    load: Load
    keep_alive: float
    """Seconds the model stays loaded after its last request; negative is for ever,
    0 unloads as soon as it is idle. The last request's value counts."""


@dataclass(frozen=True)
class Call:
    """One generation, wholly resolved: defaults merged, template rendered."""

    id: str
    endpoint: str
    """The route's path, for metrics and the log line."""
    spec: ModelSpec
    prompt: str | list[int]
    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """How many of the likeliest tokens to tell beside each one drawn; None tells nothing."""


@dataclass(frozen=True)
class EmbedCall:
    """Texts to turn into vectors, wholly resolved."""

    id: str
    endpoint: str
    spec: ModelSpec
    inputs: Sequence[str | list[int]]
    truncate: bool
    """Cut an input that is too long; else it is refused, and the call with it."""
    dimensions: int | None


class Begun(msgspec.Struct, frozen=True):
    """First event of a generation: the prompt fits and runs. Errors before it are raised. Of a
    call for embeddings the last but one."""

    prompt_tokens: int
    load_seconds: float
    """Time this call waited for its model to load; 0 if it was loaded."""


class Text(msgspec.Struct, frozen=True):
    """A piece of the answer."""

    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the tokens that begin in it, where they were asked for. Then the text may be empty."""


class Vectors(msgspec.Struct, frozen=True):
    """Those of the next inputs, in their order."""

    vectors: tuple[bytes, ...]
    """Each in float32, little-endian."""


class Ended(msgspec.Struct, frozen=True):
    """Last event of every call that did not raise."""

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    timings: Timings
    total_seconds: float
    cached_tokens: int = 0
    """Of the prompt: those that had not to be computed."""


CallEvent = Begun | Text | Vectors | Ended


@dataclass(frozen=True)
class LoadedModel:
    """A model with a worker process, as /api/ps and the metrics need it."""

    spec: ModelSpec
    """As it was loaded, with the keep_alive of its last request, and the residency, pin and
    repin_requests that were applied since."""
    pid: int
    ready: Ready | None
    """None while it loads."""
    running: int
    """Requests that have been handed to the worker."""
    waiting: int
    """Requests for it that wait in the daemon."""
    expires_at: float | None
    """Unix time at which it will be unloaded if nothing comes; None: never, or busy."""
    pin: PinReport | None = None
    """The last one; None as long as nothing was to be locked."""


class Core(Protocol):
    """The serving core as routes see it. Raises only server.errors.ServingError."""

    def generate(self, call: Call) -> AsyncGenerator[CallEvent]:
        """Begun, Text…, Ended. Closing the iterator cancels the request. Raises before
        Begun when the request was refused or the model did not load, after it when the
        worker died."""
        ...

    def embed(self, call: EmbedCall) -> AsyncGenerator[CallEvent]:
        """Vectors…, Begun, Ended, else as generate."""
        ...

    async def load(self, spec: ModelSpec) -> None:
        """Load the model and wait until it serves; only renews keep_alive if it does."""
        ...

    async def unload(self, name: str) -> None:
        """Unload once its running requests have ended; waits until its process has exited."""
        ...

    def apply(self, spec: ModelSpec) -> bool:
        """Have the loaded model take over the spec's residency, pin and repin_requests, while
        its requests run; of a model that is loading, as soon as it is. Changes begin in the
        order of these calls. False: it is not loaded, or takes them over at its next load."""
        ...

    def loaded(self) -> list[LoadedModel]: ...
