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


def test_what_a_pass_touches_in_part_is_told_apart() -> None:
    weights = [
        Weight("token_embd.weight", 0x1000, 0x2000, 0, True),
        Weight("output.weight", 0x3000, 0x1000, 0, True),
        Weight("blk.0.ffn_up_exps.weight", 0x4800, 0x2000, 0, True),
        Weight("blk.0.ffn_down_exps.weight", 0, 0x2000, None, False),
    ]
    found = weight_map(weights, 0x1000)
    assert found.mapped == (Range(0x1000, 0x7000),)
    assert found.sparse == (Range(0x1000, 0x3000), Range(0x4000, 0x7000))


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
