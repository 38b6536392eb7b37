"""No request and no manifest carries a number that would make llama.cpp abort."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from manifests.manifest import Parameters
from server.sampling import SamplingFields

FLOATS = ("temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty")


@pytest.mark.parametrize("schema", [SamplingFields, Parameters])
@pytest.mark.parametrize("field", [*FLOATS, "frequency_penalty"])
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
