"""One placement measured: a fresh daemon, the file in a state of choice, a load, then requests."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from bench import pages
from bench.contenders import Corral
from bench.prompts import Prompts
from bench.residency.driver import Answer, Driver, Refused
from bench.residency.figures import Cache, Figures, Moment
from bench.residency.worker import Worker, between
from manifests.store import Store
from provision.failure import Failure
from residency.file_cache import FileProbe
from residency.procfs import ProcessGone, ProcUnavailable

# A daemon in service is not in the middle of its start when a load is asked of it.
_REST_SECONDS = 1.0
_PIN_POLL_SECONDS = 0.3
_PIN_SECONDS = 60.0
# What of the file a cold load may find: pages.drop has seen to it, this looks again.
_COLD_SHARE = 0.01


@dataclass(frozen=True)
class Requests:
    """What is asked in each placement."""

    n: int
    prompt_tokens: int
    max_tokens: int


class Placement:
    """Over the model's files, which nobody else may map. Raises Failure if they stay cached."""

    def __init__(self, files: Sequence[Path], unmeasured: Sequence[str] = ()) -> None:
        """unmeasured: words before commands that are not measured. They have the memory that is
        measured, as pages belong to who brings them, and the disk as fast as it is."""
        self._files = files
        self._unmeasured = tuple(unmeasured)

    def measure(
        self, corral: Corral, cache: Cache, requests: Requests, prompts: Prompts
    ) -> Figures:
        """Raises Refused with the daemon's reason where the mode does not serve."""
        texts = [prompts.text(requests.prompt_tokens) for _ in range(requests.n)]
        kept = self._keep(corral, cache, requests, prompts)
        with corral.serving() as url, Driver(url) as driver, FileProbe(self._files) as probe:
            time.sleep(_REST_SECONDS)
            cached = self._prepare(cache, probe)
            try:
                look = partial(_moment, driver, probe, corral.residency)
                return _figures(driver, look, (cached, kept), requests.max_tokens, texts)
            except ProcessGone as error:
                raise Refused(f"the worker died: {error}") from error
            except ProcUnavailable as error:
                raise Failure(f"nothing can be measured without /proc: {error}") from error

    def _keep(self, corral: Corral, cache: Cache, requests: Requests, prompts: Prompts) -> int:
        """Bytes of the working set that the load will find: none, unless an earlier daemon is
        wanted, which gets as many requests, of which none is asked again. Raises Refused."""
        sets = Store(corral.setup.home).working_sets
        if sets.exists():
            shutil.rmtree(sets)
        if cache is not Cache.KEPT:
            return 0
        with replace(corral, prefix=self._unmeasured).serving() as url, Driver(url) as driver:
            for _ in range(requests.n):
                driver.complete(prompts.text(requests.prompt_tokens), requests.max_tokens)
        kept = [msgspec.msgpack.decode(file.read_bytes()) for file in sets.glob("*.msgpack")]
        if not kept:
            raise Refused("the earlier daemon has kept no working set: see its log")
        return sum(end - start for each in kept for runs in each["files"] for start, end in runs)

    def _prepare(self, cache: Cache, probe: FileProbe) -> int | None:
        """Bytes in the page cache when the load begins; None where the kernel does not tell."""
        for file in self._files:
            pages.drop(file)
        if cache is Cache.WARM:
            words = [*self._unmeasured, "cat", *map(str, self._files)]
            subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
        cached, source = probe.resident_bytes()
        size = sum(map(probe.size, self._files))
        if cache is not Cache.WARM and cached is not None and cached > size * _COLD_SHARE:
            raise Failure(f"{cached} of {size} bytes came back into the page cache ({source})")
        return cached


def _figures(
    driver: Driver,
    look: Callable[[Worker], Moment],
    before: tuple[int | None, int],
    max_tokens: int,
    texts: Sequence[str],
) -> Figures:
    began = time.perf_counter()
    load_ms = driver.load()
    worker = Worker(driver.worker_pid())
    loaded = worker.cost()
    at_load = look(worker)
    worker.reset_peak()
    sent_at_ms: list[float] = []

    def ask(text: str) -> Answer:
        sent_at_ms.append(1000 * (time.perf_counter() - began))
        return driver.complete(text, max_tokens)

    first = ask(texts[0])
    asked, peak = worker.cost(), worker.peak_rss_bytes()
    answers = [first, *map(ask, texts[1:])]
    _await_pin(driver)
    cached, kept = before
    return Figures(
        cached_before=cached,
        kept=kept,
        load_ms=load_ms,
        load=loaded,
        at_load=at_load,
        first=between(loaded, asked),
        prefill_ms=first.prefill_ms,
        generation_ms=first.generation_ms,
        tokens_per_second=first.tokens_per_second,
        rss_infer=peak,
        request_ms=tuple(each.wall_ms for each in answers),
        request_at_ms=tuple(sent_at_ms),
        prompt_tokens=tuple(each.prompt_tokens for each in answers),
        idle=look(worker),
    )


def _await_pin(driver: Driver) -> None:
    """A pin goes on in slices after the answer: until the locked bytes stand still."""
    deadline = time.monotonic() + _PIN_SECONDS
    locked: object = ()
    while locked != (locked := driver.ledger()["locked_bytes"]):
        if time.monotonic() > deadline:
            raise Refused(f"the pin had not ended after {_PIN_SECONDS:.0f} s")
        time.sleep(_PIN_POLL_SECONDS)


def _moment(driver: Driver, probe: FileProbe, mode: str, worker: Worker) -> Moment:
    ledger = driver.ledger()
    if ledger["weight_residency"] != mode:
        raise Refused(f"it runs as {ledger['weight_residency']}: see the daemon's log")
    return Moment(
        rss=worker.rss_bytes(),
        huge=worker.huge_bytes(),
        resident=ledger["resident_bytes"],
        locked=ledger["locked_bytes"],
        page_cache=probe.resident_bytes()[0],
    )
