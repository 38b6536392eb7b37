"""A grammar that grows without end, beside a stream that goes on, through a real daemon."""

from __future__ import annotations

from daemon import Daemon, sse

PROMPT = "Once upon a time"


def test_a_grammar_without_bound_fails_its_request_alone(daemon: Daemon) -> None:
    # Two threads would wait for each other on a busy machine.
    daemon.edit("smollm2", loader={"n_threads": 1, "num_parallel": 2})
    daemon.load("smollm2:latest")
    pid = daemon.worker_pid("smollm2:latest")
    body: dict[str, object] = {
        "model": "smollm2",
        "prompt": PROMPT,
        "max_tokens": 1500,
        "temperature": 0,
        "ignore_eos": True,
    }
    hostile = {**body, "grammar": 'root ::= "a" root "x" | "a" root "y"'}
    with daemon.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
        neighbour = sse(stream.iter_lines())
        assert "choices" in next(neighbour)
        answer = daemon.client.post("/v1/completions", json=hostile)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", "grammar")
        assert "too ambiguous" in error["message"]
        asked = {**hostile, "stream": True}
        with daemon.client.stream("POST", "/v1/completions", json=asked) as failing:
            assert failing.status_code == 200
            *_, last = sse(failing.iter_lines())
        assert last["error"] == error
        assert "choices" in next(neighbour)
    assert daemon.worker_pid("smollm2:latest") == pid
    assert daemon.complete("smollm2", PROMPT, 4)
