"""Three places to choose a mode, each shadowing the next, through a real daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from daemon import Daemon, running, worker_status
from page_files import needs_lock


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
        daemon.edit("plain", loader={"weight_residency": None})
        assert effective(daemon, "plain") == ("lazy", "environment")


def test_without_any_rung_a_model_is_eager(daemon: Daemon) -> None:
    assert effective(daemon, "smollm2") == ("eager", "default")


@needs_lock
def test_the_upper_rung_is_what_the_worker_does(daemon: Daemon) -> None:
    create(daemon, "top", "FROM smollm2\nPARAMETER weight_residency pinned\n")
    daemon.edit("top", loader={"weight_residency": "lazy"})
    for model in ("top:latest", "smollm2:latest"):
        daemon.load(model)
    assert worker_status(daemon.worker_pid("top:latest"), "VmLck") > 0
    assert worker_status(daemon.worker_pid("smollm2:latest"), "VmLck") == 0


@pytest.mark.parametrize("rung", ["manifest", "modelfile"])
def test_an_unknown_mode_in_a_file_falls_back_with_a_warning(
    daemon: Daemon, home: Path, rung: str
) -> None:
    daemon.client.post("/api/copy", json={"source": "smollm2", "destination": rung})
    file = home / "manifests" / rung / "latest.json"
    stored = json.loads(file.read_text())
    wrong = {"weight_residency": f"{rung}-eagre"}
    stored.update({"loader": wrong} if rung == "manifest" else {"modelfile": {"loader": wrong}})
    file.write_text(json.dumps(stored))
    daemon.load(f"{rung}:latest")
    assert effective(daemon, rung)[0] == "eager"
    assert_warned(daemon, f"{rung}-eagre")


def test_an_unknown_mode_in_the_environment_falls_back_with_a_warning(
    tmp_path: Path, smollm2: Path
) -> None:
    with running(tmp_path, {"CORRAL_WEIGHT_RESIDENCY": "eagre"}) as daemon:
        daemon.pull("model", smollm2)
        daemon.load("model:latest")
        assert effective(daemon, "model")[0] == "eager"
        assert_warned(daemon, "eagre")


def assert_warned(daemon: Daemon, mode: str) -> None:
    (line, *_) = (line for line in daemon.log.read_text().splitlines() if mode in line)
    assert "lazy_then_pin_resident" in line, "the warning lists the modes"


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
