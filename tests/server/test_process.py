"""One worker process, started for real, with a fake worker in it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from made_calls import FAKE_WORKER, made_spec

from server.process import Graces, WorkerProcess, explain, leveled
from server.protocol import (
    Accepted,
    Cancel,
    Finished,
    Generate,
    Ready,
    Sampling,
    Shutdown,
    Step,
    ToDaemon,
    ToWorker,
    encode,
)

QUICK = Graces(shutdown=0.3, terminate=0.3, hang_up=0.3)
PATIENT = Graces()


async def started(path: str = "ok", graces: Graces = PATIENT) -> WorkerProcess:
    process = await WorkerProcess.start("m", FAKE_WORKER, graces)
    send(process, made_spec(path=path).load)
    return process


def send(process: WorkerProcess, message: ToWorker) -> None:
    process.send(encode(message))


def generate(prompt: str) -> Generate:
    return Generate("1", prompt, Sampling(), -1)


def script(tmp_path: Path, text: str) -> tuple[str, str]:
    """A worker that is the given Python text."""
    path = tmp_path / "worker.py"
    path.write_text(text)
    return sys.executable, str(path)


def gone(pid: int) -> bool:
    """Ended and reaped: a zombie could still be signalled."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


class Talk:
    """What a worker said; `upon` reacts to a message of a kind."""

    def __init__(self) -> None:
        self.said: list[ToDaemon] = []
        self._reactions: list[tuple[type, Callable[[], object]]] = []

    def upon(self, kind: type, react: Callable[[], object]) -> Talk:
        self._reactions.append((kind, react))
        return self

    def __call__(self, message: ToDaemon) -> None:
        self.said.append(message)
        for kind, react in self._reactions:
            if isinstance(message, kind):
                react()


def stopping(process: WorkerProcess, tasks: list[asyncio.Task[None]]) -> Callable[[], object]:
    return lambda: tasks.append(asyncio.create_task(process.stop()))


async def test_messages_go_both_ways_and_a_stopped_worker_is_reaped() -> None:
    process = await started()
    stops: list[asyncio.Task[None]] = []
    talk = (
        Talk()
        .upon(Ready, lambda: send(process, generate("echo 2")))
        .upon(Finished, stopping(process, stops))
    )
    assert await process.run(talk) == "stopped"
    assert [type(m) for m in talk.said] == [Ready, Accepted, Step, Step, Finished]
    await stops[0]
    assert gone(process.pid)


async def test_a_worker_runs_the_daemons_code_whatever_lies_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "server" / "worker"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "__main__.py").write_text("raise SystemExit(9)")
    (tmp_path / "msgspec.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    process = await WorkerProcess.start("m")
    send(process, Shutdown())
    assert await process.run(Talk()) == "exited with status 0"


async def test_a_worker_is_told_no_keys_but_the_rest_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_API_KEYS", "secret")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    names = ("CORRAL_API_KEYS", "PYTHONPATH", "OMP_NUM_THREADS", "GGML_NO_BACKTRACE")
    argv = script(tmp_path, f"import os; print([os.environ.get(n) for n in {names}])")
    why = await (await WorkerProcess.start("m", argv)).run(Talk())
    folder = Path(__file__).parents[2]
    assert why.endswith(f"last words: [None, '{folder}:/theirs', '3', '1']")


async def test_ctrl_c_in_the_terminal_does_not_reach_a_worker() -> None:
    process = await started()
    assert os.getsid(process.pid) != os.getsid(0)
    await asyncio.gather(process.run(lambda _: None), process.stop())


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("crash 1", "ended by SIGSEGV (crash in native code); its last words: about to crash"),
        ("kill 1", "ended by SIGKILL (killed, perhaps by the kernel's OOM killer: see dmesg)"),
    ],
)
async def test_a_death_is_explained_with_the_signal_and_the_last_line(
    prompt: str, why: str
) -> None:
    process = await started()
    talk = Talk().upon(Ready, lambda: send(process, generate(prompt)))
    assert (await process.run(talk)).startswith(why)
    assert isinstance(talk.said[-1], Step)
    assert gone(process.pid)


async def test_a_worker_that_sends_no_message_is_killed() -> None:
    process = await started()
    talk = Talk().upon(Ready, lambda: send(process, generate("garbage")))
    why = await process.run(talk)
    assert why.startswith("killed: it broke the protocol: frame of 4294967295 bytes")
    assert gone(process.pid)


async def test_a_message_of_unknown_shape_kills_too() -> None:
    process = await started("garbage")
    assert (await process.run(Talk())).startswith("killed: it broke the protocol")


@pytest.mark.parametrize("prompt", ["wedge", "echo 1"])
async def test_a_worker_that_ignores_everything_is_killed(prompt: str) -> None:
    process = await started("deaf", QUICK)
    stops: list[asyncio.Task[None]] = []
    talk = (
        Talk()
        .upon(Ready, lambda: send(process, generate(prompt)))
        .upon(Accepted, lambda: send(process, Cancel("1")))
        .upon(Accepted, stopping(process, stops))
    )
    assert await process.run(talk) == "stopped"
    assert gone(process.pid)
    await stops[0]


async def test_a_worker_that_does_not_shut_down_is_terminated_before_it_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    argv = script(tmp_path, "import time; print('INFO me: up', flush=True); time.sleep(3600)")
    process = await WorkerProcess.start("m", argv, Graces(shutdown=0.1, terminate=10))
    await asyncio.gather(process.run(Talk()), process.stop())
    assert gone(process.pid)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warnings == [f"model=m pid={process.pid} does not shut down: SIGTERM"]


async def test_a_worker_that_hangs_up_without_exiting_is_killed(tmp_path: Path) -> None:
    argv = script(tmp_path, "import os, sys, time; os.close(int(sys.argv[-1])); time.sleep(3600)")
    process = await WorkerProcess.start("m", argv, QUICK)
    assert (await process.run(Talk())).startswith("ended by SIGKILL")
    assert gone(process.pid)


async def test_a_cancelled_run_leaves_no_process() -> None:
    process = await started()
    run = asyncio.create_task(process.run(Talk()))
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert gone(process.pid)


async def test_output_is_logged_by_line_with_the_model_and_in_bounded_pieces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "import sys; print('x' * 20_000); print(); print('bad \\udcff', file=sys.stderr)"
    argv = script(tmp_path, "import sys; sys.stderr.reconfigure(errors='surrogateescape')\n" + text)
    process = await WorkerProcess.start("m", argv)
    why = await process.run(Talk())
    assert why.startswith("exited with status 0; its last words: ")
    lines = [record.getMessage() for record in caplog.records]
    assert all(line.startswith("model=m ") and len(line) < 9_000 for line in lines)
    assert sum(line.count("x") for line in lines) == 20_000
    assert any("bad \N{REPLACEMENT CHARACTER}" in line for line in lines)


def test_a_worker_says_of_each_line_how_grave_it_is() -> None:
    assert leveled("INFO worker: loaded") == (logging.INFO, "worker: loaded")
    assert leveled("ERROR llama.cpp: bad magic") == (logging.ERROR, "llama.cpp: bad magic")
    assert leveled("GGML_ASSERT(x) failed") == (logging.WARNING, "GGML_ASSERT(x) failed")


async def test_a_program_that_does_not_exist_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        await WorkerProcess.start("m", ("/nonexistent/worker",))


def test_every_cause_of_death_has_words() -> None:
    assert explain(3, "") == "exited with status 3"
    assert "truncated or cannot be read: pull" in explain(-signal.SIGBUS, "")
    assert explain(-signal.SIGUSR1, "bye") == "ended by SIGUSR1; its last words: bye"
    assert explain(-(signal.SIGRTMIN + 1), "").startswith("ended by Real-time signal")
