"""One run: the model stored once, the rounds, then the table, the JSON and the picture."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from bench import cold
from bench.contenders import Contender, Corral, LlamaServer, Remote, Setup
from bench.options import Options, parse
from bench.picture import picture
from bench.plan import plan
from bench.rounds import Bench, Visit
from bench.stored import stored
from bench.summary import Line, odd_requests, summarise
from bench.table import table
from provision.failure import Failure
from provision.paths import cache_dir


def main(argv: list[str]) -> int:
    options = parse(argv)
    scenarios = plan(options)
    # Beside the other caches: /tmp may be in memory, and its files have no pages to drop.
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=cache_dir()) as folder:
        setup = _setup(options, Path(folder))
        if options.cold:
            return _cold(options, setup)
        contenders = _contenders(options, setup)
        visits = Bench(scenarios, options.seed).run(contenders, options.rounds)
    lines = summarise(scenarios, [each.name for each in contenders], visits)
    about = _about(options, contenders, visits)
    print(f"\n{table(lines)}\n")
    print("\n".join(f"- {line}" for line in about))
    _write(options, lines, visits, about)
    return 0


def _setup(options: Options, home: Path) -> Setup:
    """Raises Failure."""
    files = stored(Path(options.model), home, options.threads)
    if len(files) > 1:
        raise Failure(f"{options.model}: split models cannot be measured; join its parts first")
    return Setup(files[0], home, options.threads, options.slots, options.n_ctx)


def _contenders(options: Options, setup: Setup) -> list[Contender]:
    """Ours first, then the one that the marks are about."""
    contenders: list[Contender] = [Corral(setup, options.residency)]
    if options.starts_llama_server:
        if options.llama_server is None:
            raise Failure("--llama-server PROGRAM is missing; scripts/bench_serving builds one")
        contenders.append(LlamaServer(setup, options.llama_server))
        if options.no_repack:
            contenders.append(LlamaServer(setup, options.llama_server, repack=False))
    return [*contenders, *(Remote(name, url) for name, url in options.urls)]


def _cold(options: Options, setup: Setup) -> int:
    """Of one slot of each server. Raises Failure."""
    if options.llama_server is None:
        raise Failure("--llama-server PROGRAM is missing; scripts/bench_serving builds one")
    one = replace(setup, slots=1, n_ctx=options.slot_context)
    starts = cold.measure(
        one, options.llama_server, options.rounds, options.read_mbps, options.seed
    )
    print(f"\n{cold.report(starts)}\n")
    disk = (
        f"the disk slowed to {options.read_mbps} MB/s" if options.read_mbps else "the disk as it is"
    )
    print(f"- {Path(options.model).name}, medians of {options.rounds} rounds, {disk}")
    return 0


def _about(options: Options, contenders: Sequence[Contender], visits: Sequence[Visit]) -> list[str]:
    """What a reader has to know to believe the figures."""
    share = median(visit.client_share for visit in visits)
    rounds = "1 round" if options.rounds == 1 else f"{options.rounds} rounds"
    return [
        f"{Path(options.model).name}; {rounds}; {options.threads} threads, "
        f"{options.slots} slots and {options.n_ctx} KV cells for each server; seed {options.seed}",
        *(f"{each.name}: {each.describe()}" for each in contenders),
        *(("--quick: tells that it works, the figures mean nothing",) if options.quick else ()),
        f"the client took {100 * share:.1f} % of one core",
        *(f"note: {note}" for note in odd_requests(visits)),
    ]


def _write(
    options: Options, lines: Sequence[Line], visits: Sequence[Visit], about: Sequence[str]
) -> None:
    if options.json:
        result = {
            "about": list(about),
            "seed": options.seed,
            "summary": [asdict(line) for line in lines],
            "visits": [asdict(visit) for visit in visits],
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.svg:
        title = f"{Path(options.model).name}, {options.threads} threads, {options.rounds} rounds"
        options.svg.write_text(picture(lines, title))
