"""llama.cpp's product of Q4_1 weights on the CPU is what the format defines, for any batch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack

import llama_cpp.llama_cpp as c
import numpy as np
import numpy.typing as npt
import pytest

from server.worker.llama import open_library
from server.worker.native_log import NativeLog

F32, Q4_1 = 0, 3  # ggml_type
CPU = 0  # ggml_backend_dev_type
BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("low_high", "u1", 16)])
ROWS, WIDTH = 48, 5 * 32

Floats = npt.NDArray[np.float32]


class InitParams(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


POINTER, INT, INT64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
FUNCTIONS = {
    "ggml_init": (POINTER, InitParams),
    "ggml_free": (None, POINTER),
    "ggml_new_tensor_2d": (POINTER, POINTER, INT, INT64, INT64),
    "ggml_get_data": (POINTER, POINTER),
    "ggml_mul_mat": (POINTER, POINTER, POINTER, POINTER),
    "ggml_new_graph": (POINTER, POINTER),
    "ggml_build_forward_expand": (None, POINTER, POINTER),
    "ggml_backend_init_by_type": (POINTER, INT, ctypes.c_char_p),
    "ggml_backend_graph_compute": (INT, POINTER, POINTER),
    "ggml_backend_free": (None, POINTER),
}


def ggml(name: str, *arguments: object) -> int | None:
    function = getattr(c._lib, name)
    function.restype, *function.argtypes = FUNCTIONS[name]
    result: int | None = function(*arguments)
    return result


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    with open_library(NativeLog()):
        yield


def product(weights: npt.NDArray[np.void], columns: Floats) -> Floats:
    """weights: [rows, blocks]; columns: [n, width]; the result: [n, rows]"""
    n, width = columns.shape
    with ExitStack() as stack:
        context = ggml("ggml_init", InitParams(1 << 24, None, False))
        stack.callback(ggml, "ggml_free", context)
        backend = ggml("ggml_backend_init_by_type", CPU, None)
        stack.callback(ggml, "ggml_backend_free", backend)
        a = ggml("ggml_new_tensor_2d", context, Q4_1, width, len(weights))
        b = ggml("ggml_new_tensor_2d", context, F32, width, n)
        for tensor, values in ((a, weights), (b, columns)):
            ctypes.memmove(ggml("ggml_get_data", tensor) or 0, values.tobytes(), values.nbytes)
        made = ggml("ggml_mul_mat", context, a, b)
        graph = ggml("ggml_new_graph", context)
        ggml("ggml_build_forward_expand", graph, made)
        assert ggml("ggml_backend_graph_compute", backend, graph) == 0
        data = ctypes.string_at(ggml("ggml_get_data", made) or 0, 4 * n * len(weights))
    return np.frombuffer(data, np.float32).reshape(n, len(weights))


@pytest.mark.parametrize("rows", [ROWS, ROWS + 3])
@pytest.mark.parametrize("n", [*range(1, 18), 67])
def test_a_product_is_what_the_format_defines(n: int, rows: int) -> None:
    rng = np.random.default_rng(n)
    weights = np.zeros((rows, WIDTH // 32), BLOCK)
    weights["d"], weights["m"] = rng.uniform(0.01, 0.02, (2, *weights.shape))
    weights["m"] *= -8
    weights["low_high"] = rng.integers(256, size=weights["low_high"].shape)
    # Each block's largest is 127, so that llama.cpp's rounding to 8 bits changes nothing.
    columns = rng.integers(-64, 65, (n, WIDTH)).astype(np.float32)
    columns[:, ::32] = 127

    quants = np.concatenate((weights["low_high"] & 15, weights["low_high"] >> 4), axis=-1)
    d, m = (weights[name].astype(np.float64)[..., None] for name in ("d", "m"))
    wanted = columns @ (quants * d + m).reshape(rows, WIDTH).T

    np.testing.assert_allclose(product(weights, columns), wanted, rtol=0, atol=1e-3)
