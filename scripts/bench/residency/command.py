"""One run: the model stored once, the rounds, then tables, JSON, pictures and the page."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.contenders import Corral, Setup
from bench.prompts import Prompts
from bench.residency import made
from bench.residency.cgroups import Limits, caged, disk_of
from bench.residency.figures import Cache, Result, Visit
from bench.residency.options import SETTLED, Options, parse
from bench.residency.report import markers, read, report, with_section
from bench.residency.rounds import run, words_per_token
from bench.residency.visit import Placement, Requests
from bench.stored import stored
from provision.failure import Failure
from provision.paths import cache_dir
from provision.run import say
from residency.modes import AVAILABLE, DEFAULT_MODE

_SLOTS = 1


def main(argv: list[str]) -> int:
    options = parse(argv)
    modes = _modes(options)
    if options.docs:
        _refuse_without_place(options.docs, options.name)
    report(read(options.source) if options.source else _measured(options, modes), options)
    return 0


def _modes(options: Options) -> tuple[str, ...]:
    """Raises Failure for one that this version does not serve."""
    for mode in options.modes:
        if mode not in AVAILABLE:
            raise Failure(f"--modes: {mode!r} is none of {', '.join(AVAILABLE)}")
    return options.modes or AVAILABLE


def _refuse_without_place(page: Path, name: str) -> None:
    """Told now and not after the rounds. Raises Failure."""
    if not page.is_file():
        begin, end = markers(name)
        raise Failure(f"--docs {page}: no such page; make it, with {begin} and {end} in it")
    with_section(page.read_text(), name, "")


def _measured(options: Options, modes: Sequence[str]) -> Result:
    # Beside the other caches: /tmp may be in memory, and its files have no pages to drop.
    cache_dir().mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        home = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=cache_dir()))
        )
        files = _files(options, home)
        setup = Setup(files[0], home, options.threads, _SLOTS, options.n_ctx)
        corral = Corral(setup, DEFAULT_MODE.value)
        ratio = words_per_token(corral, options.seed)
        cage = stack.enter_context(caged(_limits(options, files[0])))
        placement = Placement(files, cage.prefix("memory") if "memory" in cage.folders else ())
        visits = run(
            replace(corral, prefix=cage.prefix()),
            modes,
            options.rounds,
            measure=placement.measure,
            requests=Requests(options.requests, options.prompt_tokens, options.max_tokens),
            prompts_of=lambda round_: Prompts(options.seed, round_, ratio),
        )
        size = sum(file.stat().st_size for file in files)
    return Result(
        title=options.name,
        about=tuple(_about(options, size, visits)),
        seed=options.seed,
        visits=tuple(visits),
    )


def _files(options: Options, home: Path) -> tuple[Path, ...]:
    """The blobs of the model, made before if it has to be. Raises Failure."""
    if options.made_gb is None:
        return stored(Path(options.model), home, options.threads)
    if options.tokenizer is None:
        raise Failure("--tokenizer GGUF is missing; scripts/bench_residency names one")
    path = home / "made.gguf"
    n_bytes = options.made_gb * 1e9
    # It is written, then copied into the store.
    if (free := shutil.disk_usage(home).free) < 2 * n_bytes:
        raise Failure(f"{home}: {free} bytes are free, twice {n_bytes:.0f} are needed")
    say(f"making {options.name}")
    made.write(path, options.shape, n_bytes, options.tokenizer, options.seed)
    files = stored(path, home, options.threads)
    path.unlink()
    return files


def _limits(options: Options, file: Path) -> Limits:
    """Raises Failure if the file's disk cannot be slowed."""
    memory, slow = options.memory_mb, options.read_mbps
    return Limits(
        memory_bytes=memory * 10**6 if memory else None,
        read_bps=slow * 10**6 if slow else None,
        disk=disk_of(file) if slow else "",
    )


def _about(options: Options, size: int, visits: Sequence[Visit]) -> list[str]:
    """What a reader has to know to believe the figures."""
    served = [visit.figures for visit in visits if visit.figures]
    prompts = [n for figures in served for n in figures.prompt_tokens]
    slow, memory = options.read_mbps, options.memory_mb
    warm = [v.figures for v in visits if v.figures and v.cache is Cache.WARM]
    partly = [f.cached_before for f in warm if f.cached_before and f.cached_before < 0.99 * size]
    rounds = "1 round" if options.rounds == 1 else f"medians of {options.rounds} rounds"
    notes = [
        f"{Path(options.model).name if options.made_gb is None else options.name}: "
        f"{size / 1e6:,.1f} MB; {rounds}, seed {options.seed}; "
        f"Linux {platform.release()}, {os.cpu_count()} CPUs, {options.threads} threads",
        f"{options.requests} requests a placement, prompts of {min(prompts)} to {max(prompts)} "
        f"tokens, {options.max_tokens} generated; warm: the last {SETTLED}",
        "RSS, resident, locked, huge and page cache are MB (10^6 bytes)",
    ]
    if slow:
        notes.append(f"the disk slowed to {slow} MB/s")
    if memory:
        notes.append(f"daemon, worker and their page cache in a cgroup of {memory:,} MB")
    if partly:
        notes.append(
            f"warm: as little as {min(partly) / 1e6:,.1f} MB of the file were in the page cache"
        )
    return notes
