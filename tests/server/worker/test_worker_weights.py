"""The account of weights, and what llama.cpp's log is read for."""

from __future__ import annotations

import logging

import pytest

from residency.ranges import Range
from server.protocol import WeightBytes
from server.worker.native_log import NativeLog
from server.worker.weights import Weight, weight_map


def test_weights_count_once_and_by_what_backs_them() -> None:
    weights = [
        Weight("embd", 0x1000, 100, 0, True),
        Weight("output, tied to embd", 0x1000, 100, 0, True),
        Weight("norm", 0x1080, 8, 0, True),
        Weight("other file", 0x9FF0, 0x20, 1, True),
        Weight("repacked", 0x20000, 30, None, True),
        Weight("on the GPU", 0, 40, None, False),
        Weight("on the GPU too", 0, 40, None, False),
    ]
    found = weight_map(weights, 0x1000)
    assert found.bytes == WeightBytes(file=140, anonymous=30, device=80)
    assert found.unmapped == {
        "repacked": "anonymous",
        "on the GPU": "device",
        "on the GPU too": "device",
    }
    assert found.mapped == (Range(0x1000, 0x2000), Range(0x9000, 0xB000))


def test_cache_buffers_add_up() -> None:
    log = NativeLog()
    log.on_line(2, b"llama_kv_cache:        CPU KV buffer size =    16.00 MiB\n")
    log.on_line(2, b"llama_kv_cache:        CPU KV buffer size =     0.50 MiB\n")
    log.on_line(2, b"llama_memory_recurrent: CPU RS buffer size =     1.00 MiB\n")
    log.on_line(2, b"sched_reserve:        CPU compute buffer size =   100.00 MiB\n")
    assert log.cache_bytes == 17.5 * 2**20


def test_errors_are_kept_and_warnings_forwarded(caplog: pytest.LogCaptureFixture) -> None:
    log = NativeLog()
    with caplog.at_level(logging.INFO):
        log.on_line(2, b"information\n")
        log.on_line(3, b"a warning \xff\n")
        for i in range(9):
            log.on_line(4, b"error %d\n" % i)
    assert [record.levelname for record in caplog.records] == ["WARNING"] + ["ERROR"] * 9
    assert log.last_errors() == "error 5; error 6; error 7; error 8"
    assert log.last_errors() == "llama.cpp gave no reason"
