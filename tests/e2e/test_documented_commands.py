"""The documentation's commands, run as they stand against a real daemon and a real model."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from daemon import Daemon, running
from documents import DOCS, Command, blocks, codes, commands, named, tables

URL = "http://127.0.0.1:8080"
MODEL_PATH = "/models/smollm2.gguf"


def examples(page: str, program: str, real: Mapping[str, str]) -> list[Command]:
    """The commands to run, with what stands for something replaced by the real thing."""
    found = []
    for command in commands(DOCS / page, program):
        text = command.text
        for written, meant in real.items():
            text = text.replace(written, meant)
        if command.runs:
            found.append(dataclasses.replace(command, text=text))
    assert found
    return found


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon over an empty store."""
    with running(tmp_path) as daemon:
        yield daemon


def test_every_curl_command_is_answered_as_documented(empty: Daemon, smollm2: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    real = {URL: str(empty.client.base_url).rstrip("/"), MODEL_PATH: str(smollm2)}
    for command in examples("http-api.md", "curl", real):
        words = ["curl", "-s", "--noproxy", "*", "-w", "\n%{http_code}", *command.words()]
        answer = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        body, _, status = answer.rpartition("\n")
        assert int(status) == command.status, f"{command.where}: {command.text}\n{body}"
        assert command.error in body, f"{command.where}: {body}"
        if '"stream": true' in command.text:
            assert body.rstrip().endswith("data: [DONE]"), f"{command.where}: {body}"


def test_every_corral_command_works(empty: Daemon, smollm2: Path, tmp_path: Path) -> None:
    (modelfile,) = (b for b in blocks(DOCS / "cli.md") if b.lines[0].startswith("FROM"))
    (tmp_path / "Modelfile").write_text("\n".join(modelfile.lines))
    where = {"CORRAL_HOST": "127.0.0.1", "CORRAL_PORT": str(empty.client.base_url.port)}
    for command in examples("cli.md", "corral", {MODEL_PATH: str(smollm2)}):
        done = subprocess.run(
            [sys.executable, "-m", "server.cli", *command.words()],
            cwd=tmp_path,
            env={**os.environ, **where, "PYTHONPATH": str(DOCS.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command.where}: {command.text}\n{done.stderr}"


def test_every_metric_has_the_documented_labels(daemon: Daemon) -> None:
    daemon.complete("smollm2", "The capital of France is", tokens=4)
    seen: dict[str, set[str]] = {}
    for sample in daemon.metrics():
        name, _, labels = sample.partition("{")
        seen[name.removesuffix("_count")] = set(re.findall(r'(\w+)="', labels))
    rows = [row for table in tables(DOCS / "metrics.md", "metric") for row in table]
    documented = {named([row])[0]: set(codes(row["labels"])) for row in rows}
    # No pin was refused, so that one has no series.
    del documented["corral_pin_failures_total"]
    assert {name: seen.get(name) for name in documented} == documented
