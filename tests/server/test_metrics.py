"""What /metrics shows, with and without models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest
from made_calls import made_ready, made_spec

from residency.file_cache import FileProbe, Source
from residency.ledger import Ledger
from residency.procfs import ProcessGone
from server.calls import LoadedModel
from server.errors import ModelNotFound
from server.ledgers import Ledgers
from server.metrics import Metrics

LEDGER = Ledger(
    file_bytes=100,
    weight_bytes=90,
    mapped_bytes=80,
    resident_bytes=70,
    touched_bytes=60,
    anonymous_bytes=50,
    huge_bytes=40,
    huge_anonymous_bytes=5,
    locked_bytes=30,
    rss_bytes=20,
    major_faults=10,
    probe=Source.MINCORE,
)
AGE = "corral_residency_sample_age_seconds"
FIELDS = ("resident_bytes", "touched_bytes", "locked_bytes", "rss_bytes", "huge_bytes")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x")
    return path


def loaded(name: str, file: Path, pid: int = 1, *, ready: bool = True) -> LoadedModel:
    spec = made_spec(name, path=str(file))
    return LoadedModel(spec, pid, made_ready(1.5) if ready else None, 2, 3, None)


def showing(models: Iterable[LoadedModel], ledgers: dict[str, Ledger | Exception]) -> Metrics:
    def sample(model: LoadedModel, probe: FileProbe) -> Ledger:
        ledger = ledgers[model.spec.name]
        if isinstance(ledger, Exception):
            raise ledger
        return ledger

    metrics = Metrics(Ledgers(sample))
    metrics.show(models, {"waits": 4})
    return metrics


def samples(metrics: Metrics, model: str) -> set[str]:
    """The model's lines, less their label `model`, and the age without its number."""
    lines = metrics.render().decode().splitlines()
    mine = (line for line in lines if f'model="{model}"' in line)
    bare = (line.replace(f'model="{model}"', "").replace("{}", "") for line in mine)
    return {AGE if line.startswith(AGE) else line for line in bare}


def test_a_loaded_model_is_described_in_full(file: Path) -> None:
    metrics = showing([loaded("m", file)], {"m": LEDGER})
    assert samples(metrics, "m") == {
        "corral_requests_running 2.0",
        "corral_requests_waiting 0.0",
        "corral_model_load_seconds 1.5",
        'corral_weight_bytes{backing="file",} 3e+06',
        'corral_weight_bytes{backing="anonymous",} 2e+06',
        'corral_weight_bytes{backing="device",} 0.0',
        "corral_resident_bytes 70.0",
        "corral_touched_bytes 60.0",
        "corral_locked_bytes 30.0",
        "corral_process_rss_bytes 20.0",
        'corral_huge_bytes{kind="anonymous",} 5.0',
        'corral_huge_bytes{kind="file",} 35.0',
        "corral_major_faults_total 10.0",
        AGE,
        'corral_residency_probe_info{,source="mincore"} 1.0',
        'corral_weight_residency_info{mode="eager",} 1.0',
    }
    metrics.show([], {})


def test_requests_that_wait_for_a_model_without_a_worker_are_seen(file: Path) -> None:
    assert samples(showing([], {}), "waits") == {"corral_requests_waiting 4.0"}


def test_what_is_unknown_has_no_series(file: Path) -> None:
    unknown = dataclasses.replace(
        LEDGER,
        resident_bytes=None,
        touched_bytes=None,
        locked_bytes=None,
        rss_bytes=None,
        huge_bytes=None,
        huge_anonymous_bytes=None,
        major_faults=None,
        probe=Source.UNKNOWN,
    )
    text = samples(showing([loaded("m", file)], {"m": unknown}), "m")
    assert 'corral_residency_probe_info{,source="unknown"} 1.0' in text
    for field in FIELDS:
        assert not any(field in line for line in text)
    assert not any("faults" in line for line in text)


def test_a_model_that_loads_has_no_weights_yet_and_does_not_count_as_loaded(file: Path) -> None:
    metrics = showing([loaded("m", file, ready=False)], {"m": LEDGER})
    text = samples(metrics, "m")
    assert "corral_process_rss_bytes 20.0" in text
    assert not any("weight_bytes" in line or "load_seconds" in line for line in text)
    assert metrics.registry.get_sample_value("corral_models_loaded") == 0
    metrics.show([loaded("m", file)], {})
    assert metrics.registry.get_sample_value("corral_models_loaded") == 1


@pytest.mark.parametrize("error", [ProcessGone("gone"), OSError(5, "I/O error")])
def test_a_model_that_cannot_be_sampled_does_not_spoil_the_scrape(
    file: Path, error: Exception
) -> None:
    models = [loaded("broken", file, 1), loaded("fine", file, 2)]
    metrics = showing(models, {"broken": error, "fine": LEDGER})
    assert "corral_resident_bytes 70.0" in samples(metrics, "fine")
    broken = samples(metrics, "broken")
    assert 'corral_residency_probe_info{,source="unknown"} 1.0' in broken
    assert "corral_requests_running 2.0" in broken


def test_the_ledger_of_a_model_by_name(file: Path) -> None:
    metrics = showing([loaded("m", file)], {"m": LEDGER})
    assert metrics.ledger("m") is LEDGER
    with pytest.raises(ModelNotFound, match="other is not loaded"):
        metrics.ledger("other")


def test_forgetting_a_model_drops_all_its_observations_and_no_others() -> None:
    metrics = showing([], {})
    for model in ("a", "b"):
        metrics.submitted(model, 0.1)
        metrics.accepted(model, 5)
        metrics.first_token(model, 0.2)
        metrics.next_tokens(model, 0.3, 3)
        metrics.generated(model, 4)
        metrics.ended(model, "/v1/completions", 200, 1)
        metrics.pin_failed(model, 12)
    kept = samples(metrics, "b")
    assert samples(metrics, "a") == kept
    assert {line.split("{")[0].split(" ")[0] for line in kept} >= {
        "corral_pin_failures_total",
        "corral_requests_total",
        "corral_prefix_cache_hits_total",
        "corral_request_duration_seconds_count",
    }
    metrics.forget("a")
    assert samples(metrics, "a") == set()
    assert samples(metrics, "b") == kept


def test_a_model_that_is_loaded_again_is_counted_from_zero() -> None:
    metrics = showing([], {})
    for _ in range(2):
        metrics.next_tokens("m", 0.3, 3)
        metrics.generated("m", 4)
        read = metrics.registry.get_sample_value
        assert read("corral_inter_token_latency_seconds_count", {"model": "m"}) == 3
        assert read("corral_generation_tokens_total", {"model": "m"}) == 4
        metrics.forget("m")


def test_tokens_that_come_together_share_the_time_since_the_last() -> None:
    metrics = showing([], {})
    metrics.next_tokens("m", 0.3, 3)
    read = metrics.registry.get_sample_value
    assert read("corral_inter_token_latency_seconds_count", {"model": "m"}) == 3
    assert read("corral_inter_token_latency_seconds_bucket", {"model": "m", "le": "0.1"}) == 3


def test_only_answered_requests_have_a_duration() -> None:
    metrics = showing([], {})
    metrics.ended("m", "/api/chat", 499, 9)
    read = metrics.registry.get_sample_value
    assert read("corral_request_duration_seconds_count", {"model": "m"}) is None
    labels = {"model": "m", "endpoint": "/api/chat", "status": "499"}
    assert read("corral_requests_total", labels) == 1


def test_the_contract_names_every_metric_and_each_has_a_help_text() -> None:
    metrics = showing([], {})
    assert metrics.names() == sorted(
        [
            "corral_resident_bytes",
            "corral_weight_bytes",
            "corral_locked_bytes",
            "corral_process_rss_bytes",
            "corral_huge_bytes",
            "corral_touched_bytes",
            "corral_weight_residency_info",
            "corral_residency_probe_info",
            "corral_residency_sample_age_seconds",
            "corral_major_faults_total",
            "corral_pin_failures_total",
            "corral_requests_total",
            "corral_requests_running",
            "corral_requests_waiting",
            "corral_time_to_first_token_seconds",
            "corral_inter_token_latency_seconds",
            "corral_request_duration_seconds",
            "corral_queue_seconds",
            "corral_request_major_faults",
            "corral_request_read_bytes",
            "corral_prompt_tokens_total",
            "corral_generation_tokens_total",
            "corral_prefix_cache_queries_total",
            "corral_prefix_cache_hits_total",
            "corral_model_load_seconds",
            "corral_models_loaded",
        ]
    )
    assert all(len(family.documentation) > 20 for family in metrics.registry.collect())
    assert "_created" not in metrics.render().decode()
