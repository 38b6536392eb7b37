"""How other programs are run: their progress and their failures."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from provision.failure import Failure
from provision.run import logged, quiet, show_steps


def test_without_a_terminal_each_tenth_is_shown_once() -> None:
    out = io.StringIO()
    lines = ["-- configuring\n", *(f"  [{n}/140] /usr/bin/c++ …\n" for n in range(1, 141))]
    show_steps(lines, out)
    shown = out.getvalue().split()
    assert shown[0] == "[14/140]"
    assert shown[-1] == "[140/140]"
    assert len(shown) == 10


def test_on_a_terminal_one_line_moves() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    show_steps(["[1/2] a\n", "[2/2] b\n"], out)
    assert out.getvalue() == "\r    [1/2]\r    [2/2]\n"


def test_a_failure_shows_all_that_the_program_said() -> None:
    program = "import sys; print('told'); sys.exit('why')"
    with pytest.raises(Failure, match=r"(?s)a step failed \(exit status 1\).*told"):
        quiet([sys.executable, "-uc", program], "a step")


def test_a_failed_build_names_the_log_that_has_everything(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    program = "for n in range(100): print('line', n)\nraise SystemExit(1)"
    with pytest.raises(Failure) as caught:
        logged([sys.executable, "-c", program], "building", log, {})
    assert str(log) in str(caught.value)
    assert "line 99" in str(caught.value)
    assert "line 0\n" not in str(caught.value)
    assert "line 0\n" in log.read_text()
