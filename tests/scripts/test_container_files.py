"""Facts about Dockerfile and compose.yaml that memory locking and a clean stop depend on."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from provision.paths import ROOT
from server.process import Graces
from server.serve import GRACE_SECONDS


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "compose.yaml").read_text()))


@pytest.fixture(scope="module")
def last_stage() -> list[str]:
    """Instructions of the image itself, one to a string."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    starts = [n for n, line in enumerate(lines) if line.startswith("FROM ")]
    return lines[starts[-1] :]


def instruction(stage: list[str], name: str) -> str:
    (found,) = (line.partition(" ")[2] for line in stage if line.startswith(name + " "))
    return found


def test_memory_may_be_locked_as_root_and_as_another_user(compose: dict[str, Any]) -> None:
    corral = compose["services"]["corral"]
    assert "IPC_LOCK" in corral["cap_add"]
    assert corral["ulimits"]["memlock"] == {"soft": -1, "hard": -1}


def test_the_memory_limit_leaves_no_swap(compose: dict[str, Any]) -> None:
    corral = compose["services"]["corral"]
    assert corral["mem_limit"] == corral["memswap_limit"]


def test_requests_get_time_to_end(compose: dict[str, Any]) -> None:
    graces = Graces()
    worst = GRACE_SECONDS + graces.shutdown + graces.terminate + graces.output
    given = re.fullmatch(r"(\d+)s", compose["services"]["corral"]["stop_grace_period"])
    assert given is not None
    # And some time for the daemon itself, on a machine that is busy.
    assert int(given[1]) >= worst + 5


def test_models_outlive_the_container(compose: dict[str, Any], last_stage: list[str]) -> None:
    (mount,) = compose["services"]["corral"]["volumes"]
    name, folder = mount.split(":")
    assert name in compose["volumes"]
    assert json.loads(instruction(last_stage, "VOLUME")) == [folder]
    assert f"CORRAL_HOME={folder}" in instruction(last_stage, "ENV")


def test_prometheus_is_pinned_and_scrapes_the_daemon(compose: dict[str, Any]) -> None:
    prometheus = compose["services"]["prometheus"]
    assert re.fullmatch(r"prom/prometheus:v\d+\.\d+\.\d+", prometheus["image"])
    config = yaml.safe_load(compose["configs"]["prometheus"]["content"])
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["corral:8080"]}]


def test_the_daemon_is_not_root(last_stage: list[str]) -> None:
    user, _, group = instruction(last_stage, "USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0


def test_the_daemon_gets_the_signals_itself(last_stage: list[str]) -> None:
    assert json.loads(instruction(last_stage, "ENTRYPOINT")) == ["corral"]
    assert json.loads(instruction(last_stage, "CMD")) == ["serve"]


def test_the_health_check_is_in_exec_form(last_stage: list[str]) -> None:
    _, _, command = instruction(last_stage, "HEALTHCHECK").partition("CMD ")
    program = json.loads(command)
    assert program[:2] == ["python", "-c"]
    compile(program[2], "healthcheck", "exec")


def test_it_listens_beyond_the_container(last_stage: list[str]) -> None:
    assert "CORRAL_HOST=0.0.0.0" in instruction(last_stage, "ENV")
