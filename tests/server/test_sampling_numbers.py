"""No request and no manifest carries a number that would make llama.cpp abort."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from manifests.manifest import Parameters
from server.protocol import Sampling
from server.sampling import SamplingFields, resolve

FLOATS = ("temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty")
OF_REQUESTS = ("dry_multiplier", "dry_base", "xtc_probability", "xtc_threshold")


@pytest.mark.parametrize("schema", [SamplingFields, Parameters])
@pytest.mark.parametrize("field", [*FLOATS, "frequency_penalty", "mirostat_tau", "mirostat_eta"])
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e7"])
def test_what_llama_cpp_cannot_compute_with_is_refused(
    schema: type[SamplingFields | Parameters], field: str, number: str
) -> None:
    with pytest.raises(ValidationError):
        schema.model_validate_json(f'{{"{field}": {number}}}')


@pytest.mark.parametrize("bias", ["NaN", "Infinity", "101"])
def test_such_a_bias_is_refused(bias: str) -> None:
    with pytest.raises(ValidationError):
        SamplingFields.model_validate_json(f'{{"logit_bias": {{"1": {bias}}}}}')


def test_a_repeat_penalty_of_0_is_refused() -> None:
    with pytest.raises(ValidationError):
        SamplingFields(repeat_penalty=0)


@pytest.mark.parametrize("field", OF_REQUESTS)
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1", "1e7"])
def test_nor_does_a_request(field: str, number: str) -> None:
    with pytest.raises(ValidationError):
        SamplingFields.model_validate_json(f'{{"{field}": {number}}}')


@pytest.mark.parametrize(
    "breakers", ['"x"', '[""]', '["\\u0000"]', f'["{"x" * 41}"]', f"{['x'] * 9}"]
)
def test_sequence_breakers_are_bounded(breakers: str) -> None:
    with pytest.raises(ValidationError):
        SamplingFields.model_validate_json(
            f'{{"dry_sequence_breakers": {breakers.replace(chr(39), chr(34))}}}'
        )


def test_a_requests_samplers_reach_the_worker() -> None:
    asked = SamplingFields.model_validate_json(
        '{"dry_multiplier": 0.8, "dry_sequence_breakers": [], "xtc_probability": 0.5,'
        ' "mirostat": 2, "grammar": "root ::= [a]"}'
    )
    assert resolve(Sampling(mirostat_tau=3), asked) == Sampling(
        dry_multiplier=0.8,
        dry_sequence_breakers=(),
        xtc_probability=0.5,
        mirostat=2,
        mirostat_tau=3,
        grammar="root ::= [a]",
    )
