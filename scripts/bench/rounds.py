"""Alternating rounds: every server once in each, on the same prompts, in turns who is first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import uvloop

from bench.client import Client
from bench.contenders import Contender
from bench.measure import measure
from bench.plan import Figures, Scenario
from bench.prompts import Prompts
from provision.failure import Failure
from provision.run import say

# Enough to tell words per token within a few percent.
_CALIBRATION_WORDS = 200
# Warm-ups draw from a sequence that no round uses.
_WARM_UP_ROUND = -1

T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    round: int
    contender: str
    scenario: str
    figures: Figures


@dataclass(frozen=True)
class Visit:
    """What one server gave in one round."""

    measured: tuple[Measured, ...]
    client_share: float
    """CPU time of this process by wall time: what the servers did not have of one core."""


def order(each: Sequence[T], round_: int) -> list[T]:
    """Another one is first in each round."""
    first = round_ % len(each)
    return [*each[first:], *each[:first]]


class Bench:
    def __init__(
        self, scenarios: Sequence[Scenario], seed: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scenarios = scenarios
        self._seed = seed
        self._clock = clock
        self._warm_ups = Prompts(seed, _WARM_UP_ROUND)
        self._words_per_token: float | None = None

    def run(self, contenders: Sequence[Contender], rounds: int) -> list[Visit]:
        """Raises Failure as soon as a server does not do what it was asked."""
        visits = []
        for round_ in range(rounds):
            for contender in order(contenders, round_):
                say(f"round {round_ + 1} of {rounds}: {contender.name}")
                with (
                    contender.serving() as url,
                    asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
                ):
                    visits.append(runner.run(self._visit(round_, contender.name, url)))
        return visits

    async def _visit(self, round_: int, name: str, url: str) -> Visit:
        async with Client(url) as client:
            words_per_token = await self._warm_up(client)
            prompts = Prompts(self._seed, round_, words_per_token)
            cpu, wall = time.process_time(), self._clock()
            measured = [
                Measured(round_, name, each.name, await measure(each, client, prompts))
                for each in self._scenarios
            ]
            share = (time.process_time() - cpu) / (self._clock() - wall)
        return Visit(tuple(measured), share)

    async def _warm_up(self, client: Client) -> float:
        """Loads what loads at the first request; gives words per token, for all servers the
        first one's, so that all get the same texts."""
        line = (await client.complete(self._warm_ups.text(_CALIBRATION_WORDS), 8)).timeline()
        if self._words_per_token is None:
            if not line.prompt_tokens:
                raise Failure("the server does not tell usage.prompt_tokens in its stream")
            self._words_per_token = _CALIBRATION_WORDS / line.prompt_tokens
        return self._words_per_token
