"""Cold starts: the table of ratios, and a start of the real thing under a slowed disk."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from slow_disk import needs_slow_disk

from bench import cold
from bench.contenders import Setup
from bench.stored import stored
from provision.failure import Failure


def test_ratios_are_taken_within_a_round() -> None:
    starts = [
        cold.Start("llama-server", (1.0, 4.0, 2.0)),
        cold.Start("corral eager", (0.5, 3.0, 1.8)),
        cold.Start("corral lazy", (0.9, 4.0, 2.2)),
    ]
    assert cold.report(starts).splitlines()[2:] == [
        "| llama-server | 2.00 | | |",
        "| corral eager | 1.80 | 0.75 (0.50 to 0.90) | ≤ 0.80 met |",
        "| corral lazy | 2.20 | 1.00 (0.90 to 1.10) | ≤ 0.80 missed |",
    ]


def test_a_llama_server_that_does_not_start_is_told(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"x" * 8192)
    setup = Setup(model, tmp_path, threads=1, slots=1, n_ctx=512)
    with pytest.raises(Failure, match="did not start"):
        cold.measure(setup, program, rounds=1, read_mbps=None, seed=1)


# Listens like llama-server, but is the daemon itself: what is timed is not of interest here.
_STAND_IN = """#!/bin/sh
while [ "$1" != --port ]; do shift; done
exec {python} -m server.cli serve --port "$2"
"""


@needs_slow_disk
def test_every_server_is_started_cold_in_every_round(
    tmp_path: Path, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = stored(smollm2, tmp_path, 1)
    setup = Setup(files[0], tmp_path, threads=1, slots=1, n_ctx=512)
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    monkeypatch.setattr(cold, "_REST_SECONDS", 0.5)
    program = tmp_path / "llama-server"
    program.write_text(_STAND_IN.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    starts = cold.measure(setup, program, rounds=1, read_mbps=200, seed=os.getpid())
    assert [start.name for start in starts] == ["llama-server", "corral eager", "corral lazy"]
    assert all(0.1 < start.seconds[0] < 60 for start in starts)
