"""Alternating rounds: every mode from each state of its file, another one first, same prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.contenders import Corral
from bench.prompts import Prompts
from bench.residency.driver import Driver, Refused
from bench.residency.figures import Cache, Figures, Visit
from bench.residency.visit import Requests
from bench.rounds import order
from provision.failure import Failure
from provision.run import say
from residency.modes import parse_mode, plan

# Enough to tell words per token within a few percent.
_CALIBRATION_WORDS = 200
# Calibration draws from a sequence that no round uses.
_CALIBRATION_ROUND = -1

Measure = Callable[[Corral, Cache, Requests, Prompts], Figures]


def words_per_token(corral: Corral, seed: int) -> float:
    """Of this model's tokenizer. Raises Failure if it serves nothing."""
    say("trying the model")
    text = Prompts(seed, _CALIBRATION_ROUND).text(_CALIBRATION_WORDS)
    with corral.serving() as url, Driver(url) as driver:
        try:
            return _CALIBRATION_WORDS / driver.complete(text, 1).prompt_tokens
        except Refused as error:
            raise Failure(f"the model does not serve: {error}") from error


def run(
    corral: Corral,
    modes: Sequence[str],
    rounds: int,
    *,
    measure: Measure,
    requests: Requests,
    prompts_of: Callable[[int], Prompts],
) -> list[Visit]:
    """A mode that refuses is told of and gone past. Raises Failure if none ever served."""
    visits = []
    for round_ in range(rounds):
        placements = [each for mode in order(modes, round_) for each in _placements(mode)]
        for mode, cache in placements:
            say(f"round {round_ + 1} of {rounds}: {mode}, {cache}")
            figures, error = None, ""
            try:
                placed = replace(corral, residency=mode)
                figures = measure(placed, cache, requests, prompts_of(round_))
            except Refused as refusal:
                error = str(refusal)
                say(f"no figures: {error}")
            visits.append(Visit(round_, mode, cache, figures, error))
    if not any(visit.figures for visit in visits):
        raise Failure(f"no mode served; the last one said: {visits[-1].error}")
    return visits


def _placements(mode: str) -> list[tuple[str, Cache]]:
    """Only where weights are left out is a working set kept."""
    leaves_out = plan(parse_mode(mode)).leaves_out
    return [(mode, cache) for cache in Cache if leaves_out or cache is not Cache.KEPT]
