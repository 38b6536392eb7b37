"""bench_serving's command line, how it starts servers, and one short run of the real thing."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from bench import command, pages
from bench.client import Client
from bench.contenders import Corral, LlamaServer, Remote, Setup
from bench.options import parse
from bench.plan import Arrival, plan
from bench.process import served
from bench.rounds import order
from provision import bench_serving, environment, llama_server, models
from provision.failure import Failure

SETUP = Setup(Path("/store/blob"), Path("/store"), threads=3, slots=5, n_ctx=5120)


def test_what_is_compared_follows_from_the_options() -> None:
    assert parse([]).starts_llama_server
    assert not parse(["--alone"]).starts_llama_server
    assert not parse(["--url", "x=http://h:1"]).starts_llama_server
    assert parse(["--url", "x=http://h:1", "--no-repack"]).starts_llama_server


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--alone", "--no-repack"], "nothing to compare with"),
        (["--url", "h:1"], "NAME=http"),
        (["--url", "corral=http://h:1"], "names must differ"),
        (["--rounds", "0"], "from 1 to 9999"),
        (["--cold", "--quick"], "takes no other"),
        (["--cold", "--svg", "x"], "no --svg"),
        (["--read-mbps", "100"], "is for --cold"),
    ],
)
def test_a_wrong_usage_is_told(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert told in capsys.readouterr().err


def test_what_is_missing_is_told_before_anything_is_set_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "prepare", lambda: pytest.fail("set up anyway"))
    with pytest.raises(Failure, match="--model nowhere: no such file, nor smollm2"):
        bench_serving.main(["--model", "nowhere"])
    with pytest.raises(Failure, match="--llama-server nowhere: not a program"):
        bench_serving.main(["--llama-server", "nowhere"])


def test_the_measurement_gets_the_arguments_a_model_file_and_a_llama_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(environment, "prepare", lambda: None)
    monkeypatch.setattr(models, "fetch", lambda model: Path("/models") / model.file)
    monkeypatch.setattr(llama_server, "program", lambda: Path("/built/llama-server"))
    monkeypatch.setattr("os.execve", lambda _program, words, _env: started.append(words[3:]))
    bench_serving.main(["--rounds", "2", "--model", "gemma3"])
    options = parse(started[0])
    assert options.rounds == 2
    assert options.model == "/models/gemma-3-270m-q4_k_m.gguf"
    assert options.llama_server == Path("/built/llama-server")
    bench_serving.main(["--alone"])
    assert parse(started[1]).llama_server is None


def test_every_scenario_fits_the_slots_and_a_slots_context() -> None:
    for options in (parse([]), parse(["--quick"])):
        scenarios = plan(options)
        assert any(isinstance(each, Arrival) for each in scenarios)
        for each in scenarios:
            shared = 0 if isinstance(each, Arrival) else each.shared_tokens
            longest = each.arriving_tokens if isinstance(each, Arrival) else each.prompt_tokens
            assert max(longest, shared + each.prompt_tokens + each.max_tokens) < (
                options.slot_context * 0.95
            )
    few = plan(parse(["--slots", "4"]))
    assert {each.streams for each in few if not isinstance(each, Arrival)} == {1, 4}
    assert not any(isinstance(each, Arrival) for each in few), "it needs a slot more"


def test_another_server_is_first_in_each_round() -> None:
    a, b, c = (Remote(name, "") for name in "abc")
    assert [[each.name for each in order([a, b, c], n)] for n in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_both_are_started_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_MAX_QUEUE", "1")
    own = Corral(SETUP, "lazy").environment()
    assert {name: text for name, text in own.items() if name.startswith("CORRAL_")} == {
        "CORRAL_HOME": "/store",
        "CORRAL_NUM_PARALLEL": "5",
        "CORRAL_CONTEXT_LENGTH": "5120",
        "CORRAL_WEIGHT_RESIDENCY": "lazy",
        "CORRAL_KEEP_ALIVE": "-1",
    }
    repacking = LlamaServer(SETUP, Path("/bin/ls")).command(80)
    words = " ".join(repacking)
    for pair in ("-m /store/blob", "-np 5", "-c 5120", "-t 3", "--port 80"):
        assert f" {pair} " in f" {words} "
    plain = LlamaServer(SETUP, Path("/bin/ls"), repack=False)
    assert plain.command(80) == [*repacking, "--no-repack"]
    assert plain.name != LlamaServer(SETUP, Path("/bin/ls")).name


def test_a_server_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    dies = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with (
        pytest.raises(Failure, match=r"did not start \(exit status 1\)[^$]*no such model"),
        served(dies, "http://127.0.0.1:9", tmp_path / "log", {}),
    ):
        pytest.fail("it serves")


def test_pages_that_stay_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    pages.drop(path)
    path.read_bytes()
    monkeypatch.setattr("os.posix_fadvise", lambda *_: None)
    with pytest.raises(Failure, match="1048576 of 1048576 bytes stayed"):
        pages.drop(path)


def test_a_quick_run_of_corral_alone(
    smollm2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CORRAL_CACHE", str(tmp_path))
    result = tmp_path / "result.json"
    arguments = ["--quick", "--rounds", "1", "--alone", "--json", str(result), "--seed", "7"]
    assert command.main(["--model", str(smollm2), *arguments]) == 0
    read = json.loads(result.read_text())
    (visit,) = read["visits"]
    figures = {each["scenario"]: each["figures"] for each in visit["measured"]}
    assert list(figures) == [each.name for each in plan(parse(["--quick"]))]
    assert figures["1 stream"]["prompt_tokens"] == pytest.approx(32, abs=8)
    assert all(each["itl_p99"] >= each["itl_p50"] > 0 for each in figures.values())
    assert "| 4 streams" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"], "the store is gone"


async def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Failure, match=f"{url}/? does not answer"):
            async with Client(url):
                pass
