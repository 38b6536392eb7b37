"""Carries a scenario out against one server and reduces what arrived to its figures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import fmean, median

from bench.client import Client, Recording
from bench.plan import Arrival, Figures, Scenario, Wave
from bench.prompts import Prompts
from bench.stats import gaps, gaps_within, percentile
from provision.failure import Failure

# Chunks after which a stream counts as running, its own prompt long behind it.
_RUNNING_CHUNKS = 4
_POLL_SECONDS = 0.01
_ARRIVED_TOKENS = 4


async def measure(scenario: Scenario, client: Client, prompts: Prompts) -> Figures:
    """Raises Failure if a request is not answered in full."""
    if isinstance(scenario, Wave):
        return await _wave(scenario, client, prompts)
    return await _arrival(scenario, client, prompts)


async def _wave(scenario: Wave, client: Client, prompts: Prompts) -> Figures:
    prefix = ""
    if scenario.shared_tokens:
        prefix = prompts.text(scenario.shared_tokens) + " "
        await client.complete(prefix + prompts.text(scenario.prompt_tokens), 1)
    waves = []
    for _ in range(scenario.times):
        texts = [prefix + prompts.text(scenario.prompt_tokens) for _ in range(scenario.streams)]
        wave = (client.complete(text, scenario.max_tokens) for text in texts)
        waves.append(await asyncio.gather(*wave))
    return wave_figures(waves, scenario.max_tokens)


def wave_figures(waves: Sequence[Sequence[Recording]], max_tokens: int) -> Figures:
    requests = [(request, request.timeline()) for wave in waves for request in wave]
    lines = [line for _, line in requests]
    for line in lines:
        if not line.done or line.completion_tokens != max_tokens or len(line.times) < 2:
            raise Failure(f"a stream gave {line.completion_tokens} of {max_tokens} tokens")
    between = [gap for line in lines for gap in gaps(line.times)]
    rates = [(line.completion_tokens - 1) / (line.times[-1] - line.times[0]) for line in lines]
    return Figures(
        decode=median(rates),
        total=sum(line.completion_tokens for line in lines) / sum(map(_wall, waves)),
        ttft_p50=1000 * median(line.times[0] - request.sent for request, line in requests),
        itl_p50=1000 * percentile(between, 50),
        itl_p99=1000 * percentile(between, 99),
        prompt_tokens=fmean(line.prompt_tokens for line in lines),
        cached_tokens=fmean(line.cached_tokens for line in lines),
    )


def _wall(wave: Sequence[Recording]) -> float:
    """Seconds from the first request to the last token."""
    return max(each.chunks[-1][0] for each in wave) - min(each.sent for each in wave)


async def _arrival(scenario: Arrival, client: Client, prompts: Prompts) -> Figures:
    running = [Recording() for _ in range(scenario.streams)]
    texts = [prompts.text(scenario.prompt_tokens) for _ in running]
    tasks = [
        asyncio.create_task(client.record(each, text, scenario.max_tokens))
        for each, text in zip(running, texts, strict=True)
    ]
    try:
        await _until_running(running, tasks)
        arrived = await client.complete(prompts.text(scenario.arriving_tokens), _ARRIVED_TOKENS)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return arrival_figures(running, arrived)


async def _until_running(running: Sequence[Recording], tasks: Sequence[asyncio.Task[None]]) -> None:
    while min(len(each.chunks) for each in running) < _RUNNING_CHUNKS:
        for task in tasks:
            if task.done():
                task.result()  # raises why it did not start
                raise Failure("a stream ended before the others ran: too few slots, or too short")
        await asyncio.sleep(_POLL_SECONDS)


def arrival_figures(running: Sequence[Recording], arrived: Recording) -> Figures:
    """The gaps of the running streams from the arrival's request to its first token."""
    lines = [each.timeline() for each in running]
    long = arrived.timeline()
    if any(line.done for line in lines) or not long.times:
        raise Failure("the running streams ended before the arriving prompt was answered")
    start, end = arrived.sent, long.times[0]
    between = [gap for line in lines for gap in gaps_within(line.times, start, end)]
    tokens = sum(1 for line in lines for time in line.times if start < time <= end)
    return Figures(
        decode=tokens / (end - start) / len(lines),
        total=tokens / (end - start),
        ttft_p50=1000 * (end - start),
        itl_p50=1000 * percentile(between, 50),
        itl_p99=1000 * percentile(between, 99),
        prompt_tokens=long.prompt_tokens,
        cached_tokens=long.cached_tokens,
    )
