"""llama.cpp's product of quantized weights on the CPU is what the format defines, for any batch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack

import llama_cpp.llama_cpp as c
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from server.worker.llama import open_library
from server.worker.native_log import NativeLog

CPU = 0  # ggml_backend_dev_type
ROWS = 48
WIDTH = 5 * 256  # more than is decoded at once
# Where a block has the halves that scale it, in halves.
SCALES = {
    GGMLQuantizationType.Q8_0: (0,),
    GGMLQuantizationType.Q4_0: (0,),
    GGMLQuantizationType.Q4_1: (0, 1),
    GGMLQuantizationType.Q5_0: (0,),
    GGMLQuantizationType.Q5_1: (0, 1),
    GGMLQuantizationType.Q4_K: (0, 1),
    GGMLQuantizationType.Q5_K: (0, 1),
    GGMLQuantizationType.Q6_K: (-1,),
}

Bytes = npt.NDArray[np.uint8]
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


def product(kind: GGMLQuantizationType, weights: Bytes, columns: Floats) -> Floats:
    """weights: [rows, bytes]; columns: [n, width]; the result: [n, rows]"""
    n, width = columns.shape
    with ExitStack() as stack:
        context = ggml("ggml_init", InitParams(1 << 24, None, False))
        stack.callback(ggml, "ggml_free", context)
        backend = ggml("ggml_backend_init_by_type", CPU, None)
        stack.callback(ggml, "ggml_backend_free", backend)
        a = ggml("ggml_new_tensor_2d", context, kind, width, len(weights))
        b = ggml("ggml_new_tensor_2d", context, GGMLQuantizationType.F32, width, n)
        for tensor, values in ((a, weights), (b, columns)):
            ctypes.memmove(ggml("ggml_get_data", tensor) or 0, values.tobytes(), values.nbytes)
        made = ggml("ggml_mul_mat", context, a, b)
        graph = ggml("ggml_new_graph", context)
        ggml("ggml_build_forward_expand", graph, made)
        assert ggml("ggml_backend_graph_compute", backend, graph) == 0
        data = ctypes.string_at(ggml("ggml_get_data", made) or 0, 4 * n * len(weights))
    return np.frombuffer(data, np.float32).reshape(n, len(weights))


def random_weights(kind: GGMLQuantizationType, rows: int, rng: np.random.Generator) -> Bytes:
    """Any bytes, but for scales of a sensible size."""
    quants, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(256, size=(rows, WIDTH // quants, size), dtype=np.uint8)
    halves = blocks.view(np.float16)
    for place in SCALES[kind]:
        halves[..., place] = rng.uniform(-0.01, 0.01, halves.shape[:-1])
    return blocks.reshape(rows, -1)


def random_columns(n: int, rng: np.random.Generator) -> Floats:
    """Each block's largest is 127, so that llama.cpp's rounding to 8 bits changes nothing."""
    columns = rng.integers(-64, 65, (n, WIDTH)).astype(np.float32)
    columns[:, ::32] = 127
    return columns


@pytest.mark.parametrize("rows", [ROWS, ROWS + 3])
@pytest.mark.parametrize("n", [*range(1, 18), 67, 130])
@pytest.mark.parametrize("kind", SCALES, ids=lambda kind: kind.name)
def test_a_product_is_what_the_format_defines(
    kind: GGMLQuantizationType, n: int, rows: int
) -> None:
    rng = np.random.default_rng(n)
    weights, columns = random_weights(kind, rows, rng), random_columns(n, rng)

    wanted = columns.astype(np.float64) @ dequantize(weights, kind).astype(np.float64).T

    largest = np.abs(wanted).max()
    np.testing.assert_allclose(product(kind, weights, columns), wanted, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("kind", SCALES, ids=lambda kind: kind.name)
def test_a_column_is_the_same_in_every_batch(kind: GGMLQuantizationType) -> None:
    features = c.llama_print_system_info().decode()
    needed = "VNNI" if kind is GGMLQuantizationType.Q8_0 else "AVX2"
    if needed not in features:
        pytest.skip(f"without {needed} it is llama.cpp's own product, which differs by batch")
    rng = np.random.default_rng(1)
    weights = random_weights(kind, ROWS, rng)
    columns = rng.normal(size=(67, WIDTH)).astype(np.float32)

    together = product(kind, weights, columns)

    for n in (1, 3, 8, 66):
        np.testing.assert_array_equal(product(kind, weights, columns[:n]), together[:n])
