"""The map of real models, and what each request is told that paging cost it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from daemon import Daemon, running, sse, until
from made_models import MoeShape, write_moe
from page_files import NOBODY, drop_cache, drops_rights, needs_lock

PROMPT = "The capital of France is"
COUNTS = ("resident_bytes", "touched_bytes", "locked_bytes")
# Of each file the head of the first page that holds weights and the tail of the last.
PAGES_OF_A_FILE = 2 * 4096

_RIGHTS = "-fowner,-dac_override"
WITHOUT_FILE_RIGHTS = ("setpriv", "--bounding-set", _RIGHTS, "--inh-caps", _RIGHTS, "--")


def blobs(home: Path) -> list[Path]:
    return list((home / "blobs").iterdir())


def summed(told: dict[str, Any], field: str, kind: str | None = None) -> int:
    return sum(cell[field] for cell in told["map"] if kind in (None, cell["class"]))


def check_against_the_ledger(told: dict[str, Any], n_files: int = 1) -> None:
    """The map adds up to the ledger, but for what lies in the pages beside tensors."""
    assert summed(told, "bytes") == told["weight_bytes"]
    for field in COUNTS:
        assert told[field] is not None
        # The map is taken a moment before.
        assert 0 <= told[field] - summed(told, field) <= n_files * PAGES_OF_A_FILE, field
    for cell in told["map"]:
        assert sum(cell["backing"].values()) == cell["backing"]["file"] == cell["bytes"]
        assert cell["locked_bytes"] <= cell["touched_bytes"] <= cell["resident_bytes"]


@pytest.fixture
def cold(daemon: Daemon, home: Path) -> Callable[[str, Path, str], None]:
    """Loads a model of a mode whose files are out of the page cache."""

    def load(name: str, path: Path, mode: str) -> None:
        models = daemon.client.get("/api/tags").json()["models"]
        if f"{name}:latest" not in [row["name"] for row in models]:
            daemon.pull(name, path)
        daemon.edit(name, loader={"weight_residency": mode})
        for row in daemon.client.get("/api/ps").json()["models"]:
            daemon.unload(row["name"])
        for blob in blobs(home):
            drop_cache(blob)
        daemon.load(f"{name}:latest")

    return load


@pytest.mark.parametrize("mode", ["lazy", "eager", pytest.param("pinned", marks=needs_lock)])
def test_the_map_of_a_dense_model_adds_up(
    mode: str, daemon: Daemon, smollm2: Path, cold: Callable[[str, Path, str], None]
) -> None:
    cold("smollm2", smollm2, mode)
    at_load = daemon.ledger("smollm2:latest")
    check_against_the_ledger(at_load)
    daemon.complete("smollm2", PROMPT)
    after = daemon.ledger("smollm2:latest")
    check_against_the_ledger(after)
    assert {cell["class"] for cell in after["map"]} == {"embd", "norm", "attn", "ffn"}
    assert {cell["layer"] for cell in after["map"]} == {None, *range(30)}
    assert summed(at_load, "touched_bytes") < 0.05 * at_load["weight_bytes"] or mode != "lazy"
    assert summed(after, "touched_bytes", "attn") == summed(after, "bytes", "attn")
    locked = after["weight_bytes"] if mode == "pinned" else 0
    assert summed(after, "locked_bytes") == locked


def test_experts_that_nobody_asked_for_are_not_touched(
    daemon: Daemon, moe: Path, cold: Callable[[str, Path, str], None]
) -> None:
    cold("moe", moe, "lazy")
    loaded = daemon.ledger("moe:latest")
    assert summed(loaded, "touched_bytes", "expert") == 0
    daemon.complete("moe", " hello", tokens=1)
    told = daemon.ledger("moe:latest")
    check_against_the_ledger(told)
    for kind in ("attn", "router"):
        assert summed(told, "touched_bytes", kind) == summed(told, "bytes", kind)
    layers = [cell for cell in told["map"] if cell["class"] == "expert"]
    assert [cell["layer"] for cell in layers] == [0, 1]
    # 2 of 48 experts for each token of prompt.
    assert all(0 < cell["touched_bytes"] < 0.25 * cell["bytes"] for cell in layers)


def test_the_map_of_a_split_model_adds_up(
    tmp_path: Path, daemon: Daemon, smollm2: Path, cold: Callable[[str, Path, str], None]
) -> None:
    files = write_moe(tmp_path / "split.gguf", smollm2, MoeShape(experts=4), tensors_per_file=7)
    assert len(files) > 2
    cold("split", files[0], "lazy")
    daemon.complete("split", " hello", tokens=1)
    told = daemon.ledger("split:latest")
    check_against_the_ledger(told, len(files))
    assert {cell["layer"] for cell in told["map"]} == {None, 0, 1}
    assert summed(told, "touched_bytes", "attn") == summed(told, "bytes", "attn")


@drops_rights
def test_of_files_of_another_owner_the_map_does_not_say_what_is_in_ram(
    tmp_path: Path, smollm2: Path
) -> None:
    """And least of all that all is, which mincore does. The daemon stays root, as others may
    not enter the folders of its interpreter, but without root's rights over foreign files."""
    with running(tmp_path, prefix=WITHOUT_FILE_RIGHTS) as daemon:
        daemon.pull("smollm2", smollm2)
        daemon.edit("smollm2", loader={"weight_residency": "lazy"})
        (blob,) = blobs(tmp_path)
        os.chown(blob, NOBODY, NOBODY)
        blob.chmod(0o444)
        drop_cache(blob)
        daemon.load("smollm2:latest")
        told = daemon.ledger("smollm2:latest")
    assert (told["resident_bytes"], told["probe"]) == (None, "unknown")
    assert {cell["resident_bytes"] for cell in told["map"]} == {None}
    # What the worker itself has, /proc tells its owner.
    assert summed(told, "touched_bytes") < 0.05 * told["weight_bytes"]


# -- what paging cost ----------------------------------------------------------------------


def openai(daemon: Daemon, chat: bool, stream: bool) -> dict[str, Any]:
    """The timings of one answer."""
    body: dict[str, Any] = {"model": "smollm2", "max_tokens": 1, "stream": stream}
    if chat:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": PROMPT}]
    else:
        path, body["prompt"] = "/v1/completions", PROMPT
    answer = daemon.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    last = list(sse(iter(answer.text.splitlines())))[-1] if stream else answer.json()
    return dict(last["timings"])


def ollama(daemon: Daemon, chat: bool, stream: bool) -> dict[str, Any]:
    """The last line of one answer."""
    body: dict[str, Any] = {"model": "smollm2", "options": {"num_predict": 1}, "stream": stream}
    if chat:
        path, body["messages"] = "/api/chat", [{"role": "user", "content": PROMPT}]
    else:
        path, body["prompt"] = "/api/generate", PROMPT
    answer = daemon.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return dict(json.loads(answer.text.splitlines()[-1]))


WAYS = {
    f"{ask.__name__}, {'chat' if chat else 'text'}, {'stream' if stream else 'whole'}": partial(
        ask, chat=chat, stream=stream
    )
    for ask in (openai, ollama)
    for chat in (True, False)
    for stream in (True, False)
}


@pytest.mark.parametrize("way", ["openai, chat, stream", "ollama, text, whole"])
def test_a_cold_lazy_request_pays_the_disk_and_a_warm_one_does_not(
    way: str,
    daemon: Daemon,
    home: Path,
    smollm2: Path,
    cold: Callable[[str, Path, str], None],
) -> None:
    cold("smollm2", smollm2, "lazy")
    weights = daemon.ledger("smollm2:latest")["weight_bytes"]
    # What the load read ahead was no request's.
    until(lambda: daemon.ledger("smollm2:latest")["resident_bytes"] >= weights)
    for blob in blobs(home):
        drop_cache(blob)
    first, second = WAYS[way](daemon), WAYS[way](daemon)
    assert second["major_faults"] < 20
    assert 0.5 * weights < first["read_bytes"] < 1.2 * weights
    assert second["read_bytes"] < 0.01 * weights
    metrics = daemon.metrics()
    counted = 'corral_request_read_bytes_count{model="smollm2:latest"}'
    assert metrics[counted] == 2
    assert metrics[counted.replace("_count", "_sum")] == first["read_bytes"] + second["read_bytes"]
    until(lambda: f"read_bytes={first['read_bytes']}" in daemon.log.read_text())


@pytest.mark.parametrize("way", WAYS)
def test_every_answer_tells_what_paging_cost(way: str, daemon: Daemon) -> None:
    told = WAYS[way](daemon)
    assert told["major_faults"] >= 0 and told["read_bytes"] >= 0
