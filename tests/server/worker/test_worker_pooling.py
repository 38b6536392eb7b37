"""How the vectors of tokens become one; compared with numpy over the whole text at once."""

from __future__ import annotations

import numpy as np
import pytest

from server.worker.pooling import How, Pool, resolve_pooling
from server.worker.refusals import RequestRefused

ROWS = np.random.default_rng(0).standard_normal((7, 5), dtype=np.float32)


def pooled(how: How, *parts: int, dimensions: int | None = None) -> np.ndarray:
    pool = Pool(how)
    for rows in np.split(ROWS, parts):
        pool.add(rows)
    return np.frombuffer(pool.unit(dimensions), dtype="<f4")


def unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / np.linalg.norm(vector))


@pytest.mark.parametrize(
    "how, expected", [("mean", ROWS.mean(axis=0)), ("cls", ROWS[0]), ("last", ROWS[-1])]
)
@pytest.mark.parametrize("parts", [(), (1,), (6,), (2, 3)])
def test_a_text_read_in_parts_pools_as_a_whole_one(
    how: How, expected: np.ndarray, parts: tuple[int, ...]
) -> None:
    np.testing.assert_allclose(pooled(how, *parts), unit(expected), rtol=1e-6)


def test_fewer_dimensions_are_the_first_ones_at_length_one() -> None:
    np.testing.assert_allclose(pooled("last", dimensions=2), unit(ROWS[-1][:2]), rtol=1e-6)


def test_a_row_is_kept_though_its_buffer_is_used_again() -> None:
    buffer = ROWS.copy()
    pool = Pool("cls")
    pool.add(buffer)
    buffer[:] = 9
    assert np.frombuffer(pool.unit(None), dtype="<f4")[0] == pytest.approx(unit(ROWS[0])[0])


def test_zeros_stay_zeros_and_no_number_is_refused() -> None:
    zeros = Pool("last")
    zeros.add(np.zeros((1, 3), np.float32))
    assert zeros.unit(None) == bytes(12)
    broken = Pool("last")
    broken.add(np.full((1, 3), np.nan, np.float32))
    with pytest.raises(ValueError, match="not finite"):
        broken.unit(None)


@pytest.mark.parametrize(
    "named, causal, how",
    [
        (1, True, "mean"),
        (2, False, "cls"),
        (3, True, "last"),
        (None, True, "last"),
        (None, False, "mean"),
        (0, True, "last"),
    ],
)
def test_the_gguf_decides_then_the_kind_of_model(named: int | None, causal: bool, how: How) -> None:
    assert resolve_pooling("model", named, causal=causal) == how


@pytest.mark.parametrize("named, told", [(4, "a reranker"), (9, r"unknown here \(9\)")])
def test_what_is_no_pooling_is_refused_unless_overruled(named: int, told: str) -> None:
    with pytest.raises(RequestRefused, match=told):
        resolve_pooling("model", named, causal=True)
    assert resolve_pooling("cls", named, causal=True) == "cls"
