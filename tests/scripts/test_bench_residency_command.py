"""bench_residency's command line, the models that it makes, and one short run of the real thing."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from made_visits import figures
from page_files import MIB, drop_cache, mapped, touch, write_file

from bench.contenders import Corral, Setup
from bench.prompts import Prompts
from bench.residency import command, made
from bench.residency.driver import Refused
from bench.residency.figures import Cache, Figures
from bench.residency.options import SETTLED, parse
from bench.residency.rounds import run
from bench.residency.visit import Requests
from bench.residency.worker import Worker, between
from manifests.header import read_model
from provision import bench_residency, environment, models
from provision.failure import Failure
from residency.modes import AVAILABLE
from residency.procfs import ProcessGone

CORRAL = Corral(Setup(Path("/store/blob"), Path("/store"), 1, 1, 512), "eager")
REQUESTS = Requests(6, 64, 16)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--requests", "5"], "ask for more"),
        (["--memory-mb", "20"], "the daemon alone needs"),
        (["--made", "0"], "from 0.05 to 1000"),
        (["--made", "nan"], "from 0.05 to 1000"),
        (["--made", "4", "--model", "x"], "not allowed with"),
        (["--name", "../x"], "small letters"),
        (["--read-mbps", "0"], "from 1 to 9999"),
    ],
)
def test_a_wrong_usage_is_told(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert told in capsys.readouterr().err


def test_a_run_is_named_after_its_model_and_limits() -> None:
    assert parse([]).name == "smollm2"
    assert parse(["--model", "/x/My Model.Q4.gguf"]).name == "my-model.q4"
    limited = ["--made", "4", "--read-mbps", "100", "--memory-mb", "2000"]
    assert parse(limited).name == "made-moe-4gb-read-100-memory-2000"
    assert parse(["--from", "docs/x/gemma3.json"]).name == "gemma3"
    assert parse(["--name", "mine"]).name == "mine"


def test_a_quick_run_is_long_enough_to_tell_warm_from_cold() -> None:
    assert parse(["--quick"]).requests > SETTLED


def test_what_is_missing_is_told_before_anything_is_set_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "prepare", lambda: pytest.fail("set up anyway"))
    with pytest.raises(Failure, match="--model nowhere: no such file, nor smollm2"):
        bench_residency.main(["--model", "nowhere"])
    monkeypatch.setattr(command, "stored", lambda *_: pytest.fail("begun anyway"))
    monkeypatch.setenv("CORRAL_CACHE", str(tmp_path))
    with pytest.raises(Failure, match="'eagre' is none of eager, lazy"):
        command.main(["--modes", "eager,eagre"])
    with pytest.raises(Failure, match="no such page"):
        command.main(["--docs", str(tmp_path / "page.md")])
    page = tmp_path / "page.md"
    page.write_text("# no markers\n")
    with pytest.raises(Failure, match=r"no place for mine.*\n.*bench:begin mine"):
        command.main(["--docs", str(page), "--name", "mine"])


def test_the_measurement_gets_the_files_and_keeps_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(environment, "prepare", lambda: None)
    monkeypatch.setattr(models, "fetch", lambda model: Path("/models") / model.file)
    monkeypatch.setattr(bench_residency, "fetch", lambda model: Path("/models") / model.file)
    monkeypatch.setattr("os.execve", lambda _program, words, _env: started.append(words[2:]))
    bench_residency.main(["--model", "gemma3", "--memory-mb", "400"])
    what, *words = started.pop()
    assert what == "residency"
    options = parse(words)
    assert (options.model, options.name) == (
        "/models/gemma-3-270m-q4_k_m.gguf",
        "gemma3-memory-400",
    )
    bench_residency.main(["--made", "4"])
    assert parse(started.pop()[1:]).tokenizer == Path("/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    bench_residency.main(["--from", "x.json"])
    assert started.pop() == ["residency", "--from", "x.json"]


# -- rounds --------------------------------------------------------------------------------


def visited(modes: Sequence[str], rounds: int, refusing: str = "") -> list[tuple[int, str, str]]:
    """Round, mode and cache in their order; each measured on a placement in its mode."""
    seen: list[str] = []

    def measure(corral: Corral, cache: Cache, requests: Requests, prompts: Prompts) -> Figures:
        seen.append(f"{corral.residency} {cache} {prompts.text(8)}")
        if corral.residency == refusing:
            raise Refused("no room")
        return figures()

    visits = run(
        CORRAL,
        modes,
        rounds,
        measure=measure,
        requests=REQUESTS,
        prompts_of=lambda round_: Prompts(1, round_),
    )
    assert [s.split()[:2] for s in seen] == [[v.mode, v.cache] for v in visits]
    # The same prompts for all in a round, and others in the next.
    prompts = {(visit.round, s.split(None, 2)[2]) for visit, s in zip(visits, seen, strict=True)}
    assert len(prompts) == len({text for _, text in prompts}) == rounds
    assert all((visit.error == "no room") == (visit.mode == refusing) for visit in visits)
    return [(visit.round, visit.mode, visit.cache) for visit in visits]


def test_every_round_begins_with_another_mode_and_has_all() -> None:
    eager = [("eager", "cold"), ("eager", "warm")]
    lazy = [("lazy", "cold"), ("lazy", "kept"), ("lazy", "warm")]
    first, second = [(0, *each) for each in eager + lazy], [(1, *each) for each in lazy + eager]
    assert visited(["eager", "lazy"], 2) == [*first, *second]


def test_a_mode_that_refuses_is_gone_past_and_a_run_without_figures_is_a_failure() -> None:
    assert len(visited(["eager", "pinned"], 1, refusing="eager")) == 4
    with pytest.raises(Failure, match="no mode served; the last one said: no room"):
        visited(["lazy"], 1, refusing="lazy")


# -- the worker in /proc -------------------------------------------------------------------


def test_the_peak_is_that_since_the_reset() -> None:
    own = Worker("self")
    block = bytearray(b"x") * (64 * MIB)
    with_block = own.peak_rss_bytes()
    assert with_block >= own.rss_bytes() - MIB
    del block
    own.reset_peak()
    assert own.peak_rss_bytes() < with_block - 32 * MIB
    assert own.huge_bytes() >= 0


def test_what_a_process_has_read_from_the_disk_is_counted(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file", 4 * MIB)
    drop_cache(path)
    own = Worker("self")
    before = own.cost()
    with mapped(path) as pages:
        touch(pages)
    cost = between(before, own.cost())
    assert cost.read_bytes >= 4 * MIB
    assert cost.major_faults >= 1


def test_a_worker_that_ended_is_told() -> None:
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", ""])
    os.waitpid(pid, 0)
    for ask in (Worker(pid).rss_bytes, Worker(pid).reset_peak, Worker(pid).cost):
        with pytest.raises(ProcessGone):
            ask()


# -- made models ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["moe", "dense"])
@pytest.mark.parametrize("gigabytes", [0.5, 4, 13])
def test_a_made_model_is_about_as_large_as_asked(kind: str, gigabytes: float) -> None:
    vocabulary = 49_152
    shape = made.shape_of(kind, gigabytes * 1e9, vocabulary)
    elements = sum(math.prod(dims) for _, dims in shape.tensors(vocabulary))
    assert 2 * elements == pytest.approx(gigabytes * 1e9, rel=0.1)


def test_made_weights_are_noise_and_not_zeros(tmp_path: Path, smollm2: Path) -> None:
    path = tmp_path / "made.gguf"
    made.write(path, "moe", 1, smollm2, seed=3)
    header = read_model([path])
    assert header.architecture == "llama"
    again = tmp_path / "again.gguf"
    made.write(again, "moe", 1, smollm2, seed=3)
    data = path.read_bytes()
    assert data == again.read_bytes()
    tail = data[-8 * MIB :]
    assert tail.count(0) < len(tail) / 50


# -- the real thing ------------------------------------------------------------------------


def test_a_quick_run_on_a_made_model(
    smollm2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CORRAL_CACHE", str(tmp_path / "cache"))
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:begin tiny -->\n<!-- bench:end tiny -->\n")
    made_model = ["--made", "0.1", "--tokenizer", str(smollm2), "--seed", "7"]
    quick = ["--quick", "--tokens", "4", "--prompt-tokens", "16", "--modes", "eager,lazy"]
    assert command.main([*made_model, *quick, "--docs", str(page), "--name", "tiny"]) == 0
    visits = json.loads((tmp_path / "page" / "tiny.json").read_text())["visits"]
    seen = {(visit["mode"], visit["cache"]): visit["figures"] for visit in visits}
    assert sorted(seen) == [
        *(("eager", "cold"), ("eager", "warm")),
        *(("lazy", "cold"), ("lazy", "kept"), ("lazy", "warm")),
    ]
    cold, lazy = seen["eager", "cold"], seen["lazy", "cold"]
    # Half of the file are its experts. What is read ahead may come after the load's answer.
    assert 0 < lazy["load"]["read_bytes"] < 80e6
    assert cold["idle"]["resident"] > 100e6
    assert lazy["first"]["read_bytes"] > 1e6, "the experts that it was given to"
    # Two of 256 experts a token: what a request touches is a part.
    assert lazy["at_load"]["resident"] < lazy["idle"]["resident"] < cold["idle"]["resident"]
    kept = seen["lazy", "kept"]
    assert lazy["kept"] == 0 < kept["kept"] < kept["idle"]["resident"]
    assert lazy["idle"]["resident"] < kept["idle"]["resident"]
    assert all(seen[key]["cached_before"] == 0 for key in seen if key[1] != "warm")
    for warm in (seen["eager", "warm"], seen["lazy", "warm"]):
        assert warm["cached_before"] > 100e6
        assert warm["first"]["read_bytes"] == 0
    assert all(len(f["request_ms"]) == 6 for f in seen.values())
    assert {n for f in seen.values() for n in f["prompt_tokens"]} <= set(range(14, 19))
    assert "| `lazy`  | cold" in page.read_text()
    assert "| `lazy`  | cold" in capsys.readouterr().out
    assert list((tmp_path / "cache").iterdir()) == [], "the store is gone"


def test_all_modes_of_this_version_are_measured_unless_told_otherwise() -> None:
    assert command._modes(parse([])) == AVAILABLE
