"""A serving core that answers from a script, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from server.calls import Begun, Call, CallEvent, EmbedCall, Ended, LoadedModel, ModelSpec, Text
from server.errors import ServingError
from server.protocol import Ready, Timings, WeightBytes

TIMINGS = Timings(prompt_seconds=0.5, predicted_seconds=2.0, major_faults=7, read_bytes=4096)
ENDED = Ended("stop", 5, 3, TIMINGS, 3.0, cached_tokens=2)
READY = Ready(0.1, 4096, 1, WeightBytes(file=1000), 234)


@dataclass
class FakeCore:
    """Each item of the script is an event, an error to raise, or an Event to wait for."""

    script: Sequence[CallEvent | ServingError | asyncio.Event] = (
        Begun(5, 0.25),
        Text("Hel"),
        Text("lo"),
        ENDED,
    )
    calls: list[Call] = field(default_factory=list)
    embeds: list[EmbedCall] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    """Ids of the calls whose iterator has ended, however it did."""
    loads: list[ModelSpec] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    models: list[LoadedModel] = field(default_factory=list)
    applied: list[ModelSpec] = field(default_factory=list)
    """What was to be applied to a loaded model at once; it is if the model is loaded."""

    async def generate(self, call: Call) -> AsyncGenerator[CallEvent]:
        self.calls.append(call)
        try:
            for item in self.script:
                if isinstance(item, ServingError):
                    raise item
                if isinstance(item, asyncio.Event):
                    await item.wait()
                else:
                    yield item
        finally:
            self.closed.append(call.id)

    async def embed(self, call: EmbedCall) -> AsyncGenerator[CallEvent]:
        self.embeds.append(call)
        try:
            for item in self.script:
                if isinstance(item, ServingError):
                    raise item
                if isinstance(item, asyncio.Event):
                    await item.wait()
                else:
                    yield item
        finally:
            self.closed.append(call.id)

    async def load(self, spec: ModelSpec) -> None:
        self.loads.append(spec)

    async def unload(self, name: str) -> None:
        self.unloads.append(name)

    def apply(self, spec: ModelSpec) -> bool:
        self.applied.append(spec)
        return any(model.spec.name == spec.name for model in self.models)

    def loaded(self) -> list[LoadedModel]:
        return self.models
