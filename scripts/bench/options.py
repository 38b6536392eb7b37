"""The command line of bench_serving. Standard library only: read before anything is installed."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

# The arriving prompt of 4,000 tokens, its answer, and room for a tokeniser that counts otherwise.
SLOT_CONTEXT = 4608
QUICK_SLOT_CONTEXT = 1024


@dataclass(frozen=True)
class Options:
    model: str
    """A known name or a path."""
    llama_server: Path | None
    urls: tuple[tuple[str, str], ...]
    """Running servers to compare with, by name."""
    alone: bool
    no_repack: bool
    cold: bool
    """Measure cold starts, and nothing else."""
    read_mbps: int | None
    rounds: int
    quick: bool
    threads: int
    slots: int
    slot_context: int
    residency: str
    seed: int
    json: Path | None
    svg: Path | None

    @property
    def n_ctx(self) -> int:
        return self.slots * self.slot_context

    @property
    def starts_llama_server(self) -> bool:
        return not self.alone and (self.no_repack or self.llama_server is not None or not self.urls)


def parse(argv: list[str]) -> Options:
    """Exits with status 2 and the reason for a wrong usage."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.alone and (given.url or given.no_repack or given.llama_server):
        parser.error("--alone leaves nothing to compare with: drop it or the other server")
    if given.cold and (given.alone or given.url or given.no_repack or given.quick):
        parser.error("--cold compares with llama-server alone: it takes no other, and no --quick")
    if given.read_mbps and not given.cold:
        parser.error("--read-mbps is for --cold: nothing else waits for the disk")
    if given.cold and (given.json or given.svg):
        parser.error("--cold prints its table: no --json, no --svg")
    names = [name for name, _ in given.url]
    if len({*names, "corral"}) <= len(names):
        parser.error(f"--url: names must differ, also from corral: {', '.join(names)}")
    return Options(
        model=given.model,
        llama_server=given.llama_server,
        urls=tuple(given.url),
        alone=given.alone,
        no_repack=given.no_repack,
        cold=given.cold,
        read_mbps=given.read_mbps,
        rounds=given.rounds or (1 if given.quick else 5),
        quick=given.quick,
        threads=given.threads,
        slots=given.slots or (4 if given.quick else 16),
        slot_context=QUICK_SLOT_CONTEXT if given.quick else SLOT_CONTEXT,
        residency=given.residency,
        seed=int.from_bytes(os.urandom(3)) if given.seed is None else given.seed,
        json=given.json,
        svg=given.svg,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "bench_serving",
        description="Measure corral beside llama-server, built from the same source, or beside "
        "running servers. Prints a table of medians over the rounds.",
    )
    add = parser.add_argument
    add("--model", default="smollm2", help="smollm2, gemma3 or a GGUF file (smollm2)")
    add("--llama-server", type=Path, metavar="PROGRAM", help="instead of building one")
    add("--no-repack", action="store_true", help="measure llama-server without repacking too")
    url_help = "a running server instead of llama-server; may be repeated"
    add("--url", type=_named_url, action="append", default=[], metavar="NAME=URL", help=url_help)
    add("--alone", action="store_true", help="corral only, no ratios")
    add("--rounds", type=_positive, help="each with every server once (5; --quick: 1)")
    add("--quick", action="store_true", help="few short requests: tells that it works, no more")
    add("--cold", action="store_true", help="measure cold starts, and nothing else")
    add("--read-mbps", type=_positive, metavar="N", help="with --cold, slow the disk to N MB/s")
    cpus = len(os.sched_getaffinity(0))
    add("--threads", type=_positive, default=cpus, help=f"of each server ({cpus})")
    add("--slots", type=_positive, help="of each server (16; --quick: 4)")
    add("--residency", default="eager", help="weight_residency of corral (eager)")
    add("--seed", type=int, help="of the prompts (random; a run's is in its JSON)")
    add("--json", type=Path, metavar="FILE", help="write every figure of every round")
    add("--svg", type=Path, metavar="FILE", help="write the picture of the ratios")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or len(text) > 4 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 to 9999 is wanted")
    return int(text)


def _named_url(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    if not name or not url.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=http://… is wanted")
    return name, url.rstrip("/")
