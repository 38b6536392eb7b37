"""How a worker process starts, fails to load, and ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from made_models import TINY, write_moe
from worker_process import PATIENCE_SECONDS, load_message, loaded_worker, request, worker_process

from server.protocol import Finished, LoadFailed, Ready, Shutdown, Step
from server.worker.channel import EXIT_ORPHANED, EXIT_PROTOCOL


def failure(*paths: Path, prefix: Sequence[str] = (), **changes: object) -> str:
    with worker_process(prefix) as worker:
        worker.send(load_message(*paths, **changes))
        message = worker.expect(LoadFailed).message
        assert worker.process.wait(PATIENCE_SECONDS) == 1
        return message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "none.gguf") in failure(tmp_path / "none.gguf")


def test_garbage_gets_llama_cpps_own_reason(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a GGUF at all" * 1000)
    assert "magic" in failure(path)


def test_a_truncated_file_is_refused(smollm2: Path, tmp_path: Path) -> None:
    path = Path(shutil.copyfile(smollm2, tmp_path / "model.gguf"))
    os.truncate(path, path.stat().st_size // 2)
    assert "not within the file bounds" in failure(path)


def test_a_context_that_memory_cannot_hold_fails_the_load(smollm2: Path) -> None:
    # 23,040 bytes a cell: 23 GB.
    limit = ["prlimit", f"--as={8 << 30}"]
    assert "failed to allocate" in failure(smollm2, prefix=limit, n_ctx=1_000_000)


def test_sizes_beyond_32_bits_are_refused(smollm2: Path) -> None:
    assert "n_ctx is 4294967552" in failure(smollm2, n_ctx=(1 << 32) + 256)
    assert "n_batch is 0" in failure(smollm2, n_batch=0)


def test_a_quantised_v_cache_without_flash_attention_is_refused(smollm2: Path) -> None:
    refusal = failure(smollm2, type_v="q8_0", flash_attn="off")
    assert "type_v q8_0 needs flash attention" in refusal
    assert "set flash_attn to auto or on" in refusal


@pytest.mark.parametrize("n_slots", [0, 257])
def test_slots_out_of_range_are_refused(smollm2: Path, n_slots: int) -> None:
    assert f"{n_slots} slots" in failure(smollm2, n_slots=n_slots)


def test_an_unknown_mode_is_refused_by_name(smollm2: Path) -> None:
    assert "'eagre'" in failure(smollm2, residency="eagre")


def test_a_model_loads_from_any_file_name(smollm2: Path, tmp_path: Path) -> None:
    blob = tmp_path / "sha256-0123"
    blob.symlink_to(smollm2)
    with loaded_worker(blob) as (worker, _):
        assert worker.answer(request("r", "Once", max_tokens=1)).end.reason == "length"


def test_a_split_model_loads_from_any_file_names(smollm2: Path, tmp_path: Path) -> None:
    whole = write_moe(tmp_path / "whole.gguf", smollm2, TINY)
    splits = write_moe(tmp_path / "split.gguf", smollm2, TINY, tensors_per_file=4)
    assert len(splits) > 2
    blobs = [split.rename(tmp_path / f"sha256-{i}") for i, split in enumerate(splits)]
    answers = []
    for paths in (whole, blobs):
        with loaded_worker(*paths) as (worker, ready):
            answers.append((worker.answer(request("r", "Once")).text, ready.weights))
    assert answers[0] == answers[1]
    missing = failure(blobs[0])
    assert "split" in missing


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    assert "no tokenizer" in failure(*write_moe(tmp_path / "model.gguf", None, TINY))


def test_zero_takes_the_models_own_context(smollm2: Path) -> None:
    with loaded_worker(smollm2, n_ctx=0, n_threads=0) as (_, ready):
        assert ready.n_ctx == 8192


def test_shutdown_ends_requests_as_cancelled_and_exits_0(smollm2: Path) -> None:
    with worker_process() as worker:
        worker.send(load_message(smollm2))
        worker.expect(Ready)
        worker.accepted(request("r", "Once", max_tokens=-1, ignore_eos=True))
        worker.send(Shutdown())
        message = worker.receive()
        while isinstance(message, Step):
            message = worker.receive()
        assert isinstance(message, Finished)
        assert message.reason == "cancelled"
        assert worker.process.wait(PATIENCE_SECONDS) == 0


def test_shutdown_before_load_exits_0() -> None:
    with worker_process() as worker:
        assert worker.shut_down() == 0


def test_the_end_of_the_daemon_ends_an_idle_worker(smollm2: Path) -> None:
    with worker_process() as worker:
        worker.send(load_message(smollm2))
        worker.expect(Ready)
        worker.sock.close()
        assert worker.process.wait(PATIENCE_SECONDS) == EXIT_ORPHANED


def test_the_end_of_the_daemon_ends_a_worker_inside_a_native_call(tmp_path: Path) -> None:
    """One that never returns; made through ctypes, as llama.cpp's are."""
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import ctypes; print(flush=True)\nctypes.CDLL(None).pause()"
    )
    with worker_process(python_path=tmp_path, stdout=subprocess.PIPE) as worker:
        worker.send(load_message(tmp_path))
        assert worker.process.stdout is not None
        worker.process.stdout.readline()
        worker.sock.close()
        assert worker.process.wait(PATIENCE_SECONDS) == EXIT_ORPHANED


def test_a_worker_ignores_ctrl_c(smollm2: Path) -> None:
    with loaded_worker(smollm2) as (worker, _):
        worker.process.send_signal(signal.SIGINT)
        assert worker.answer(request("r", "Once", max_tokens=1)).end.reason == "length"


def test_what_is_no_message_ends_the_worker() -> None:
    with worker_process() as worker:
        worker.sock.sendall(b"\xff\xff\xff\xff")
        assert worker.process.wait(PATIENCE_SECONDS) == EXIT_PROTOCOL


def test_a_library_that_is_not_ours_is_refused_with_the_remedy(
    smollm2: Path, tmp_path: Path
) -> None:
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('no libllama.so')")
    with worker_process(python_path=tmp_path) as worker:
        worker.send(load_message(smollm2))
        message = worker.expect(LoadFailed).message
    assert "no libllama.so" in message
    assert "scripts/build_llama" in message


def test_an_unpatched_library_is_refused() -> None:
    """In a process of its own: the library is taken apart."""
    code = (
        "import llama_cpp.llama_cpp as c; from server.worker import llama; {}\n"
        "try: llama.check_library()\n"
        "except llama.LibraryMismatch as error: print(error)"
    )
    for damage in (
        "del c.llama_model_params_size",
        "c.llama_model_params_size = lambda: 8",
        "del c.llama_sampler_grammar_error",
        "llama.READER_LIBRARY = llama.READER_LIBRARY.with_name('libgone.so')",
    ):
        command = [sys.executable, "-c", code.format(damage)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "scripts/build_llama" in done.stdout
