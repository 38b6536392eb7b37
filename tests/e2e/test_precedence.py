"""Three places to choose a mode, each shadowing the next, through a real daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from daemon import Daemon, running, worker_status


def effective(daemon: Daemon, model: str) -> tuple[str, str]:
    shown = daemon.client.post("/api/show", json={"model": model}).json()
    option = shown["effective"]["weight_residency"]
    return option["value"], option["source"]


def create(daemon: Daemon, model: str, modelfile: str) -> None:
    body = {"model": model, "modelfile": modelfile, "stream": False}
    answer = daemon.client.post("/api/create", json=body)
    assert answer.status_code == 200, answer.text


def test_each_rung_shadows_the_next(tmp_path: Path, smollm2: Path) -> None:
    with running(tmp_path, {"CORRAL_WEIGHT_RESIDENCY": "lazy"}) as daemon:
        daemon.pull("plain", smollm2)
        assert effective(daemon, "plain") == ("lazy", "environment")
        answer = daemon.edit("plain", loader={"weight_residency": "eager"})
        assert answer["applies"] == {"loader.weight_residency": "next_load"}
        assert effective(daemon, "plain") == ("eager", "manifest")
        create(daemon, "top", "FROM plain\nPARAMETER weight_residency pinned\n")
        assert effective(daemon, "top") == ("pinned", "modelfile")
        answer = daemon.edit("top", loader={"weight_residency": "lazy"})
        assert answer["applies"] == {"loader.weight_residency": "shadowed"}
        assert effective(daemon, "top") == ("pinned", "modelfile")
        daemon.load("top:latest")
        daemon.load("plain:latest")
        assert worker_status(daemon.worker_pid("top:latest"), "VmLck") > 0
        assert worker_status(daemon.worker_pid("plain:latest"), "VmLck") == 0
    with running(tmp_path) as daemon:
        daemon.edit("plain", loader={"weight_residency": None})
        assert effective(daemon, "plain") == ("eager", "default")


@pytest.mark.parametrize("rung", ["manifest", "environment", "modelfile"])
def test_an_unknown_mode_falls_back_with_a_warning(
    tmp_path: Path, smollm2: Path, rung: str
) -> None:
    env = {"CORRAL_WEIGHT_RESIDENCY": "eagre"} if rung == "environment" else {}
    with running(tmp_path) as daemon:
        daemon.pull("model", smollm2)
    file = tmp_path / "manifests" / "model" / "latest.json"
    stored = json.loads(file.read_text())
    if rung == "manifest":
        stored["loader"]["weight_residency"] = "eagre"
    if rung == "modelfile":
        stored["modelfile"] = {
            "loader": {"weight_residency": "eagre"},
            "parameters": {},
            "text": "",
        }
    file.write_text(json.dumps(stored))
    with running(tmp_path, env) as daemon:
        daemon.load("model:latest")
        assert effective(daemon, "model")[0] == "eager"
        log = daemon.log.read_text()
    assert "eagre" in log
    assert "lazy_then_pin_resident" in log, "the warning lists the modes"


def test_a_typo_is_refused_where_nothing_is_lost_yet(daemon: Daemon) -> None:
    edit = {"model": "smollm2", "loader": {"weight_residency": "eagre"}}
    answer = daemon.client.post("/api/edit", json=edit)
    assert answer.status_code == 400
    assert "lazy_then_pin_resident" in answer.json()["error"]
    modelfile = "FROM smollm2\nPARAMETER weight_residency eagre\n"
    body = {"model": "typo", "modelfile": modelfile, "stream": False}
    answer = daemon.client.post("/api/create", json=body)
    assert answer.status_code == 400
    assert daemon.client.post("/api/show", json={"model": "typo"}).status_code == 404


def test_the_resident_mode_is_refused_by_name(daemon: Daemon) -> None:
    edit = {"model": "smollm2", "loader": {"weight_residency": "resident"}}
    answer = daemon.client.post("/api/edit", json=edit)
    assert answer.status_code == 400
    assert "resident" in answer.json()["error"]
    assert "not available" in answer.json()["error"]


def test_a_modelfile_shapes_requests(daemon: Daemon) -> None:
    modelfile = 'FROM smollm2\nSYSTEM """You speak like a pirate."""\nPARAMETER temperature 0\n'
    create(daemon, "pirate", modelfile)
    body = {
        "model": "pirate",
        "messages": [{"role": "user", "content": "Who are you?"}],
        "max_tokens": 24,
    }

    def answer(**more: object) -> str:
        reply = daemon.client.post("/v1/chat/completions", json={**body, **more})
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["message"]["content"])

    own_system = [{"role": "system", "content": "You are a chemist."}, *body["messages"]]  # type: ignore[misc]
    assert answer() == answer(), "the Modelfile's temperature 0 is the default"
    assert answer() != answer(messages=own_system)
