"""A GGUF's header as llama.cpp reads it: its gguf.h, which llama-cpp-python does not mirror."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp.llama_cpp as c

from residency.ranges import Range
from residency.read_order import FileTensor


class _InitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


_gguf = c._lib
for _name, (_result, *_arguments) in {
    "gguf_init_from_file": (ctypes.c_void_p, ctypes.c_char_p, _InitParams),
    "gguf_free": (None, ctypes.c_void_p),
    "gguf_find_key": (ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p),
    "gguf_get_kv_type": (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64),
    "gguf_get_val_str": (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64),
    "gguf_get_arr_n": (ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64),
    "gguf_get_data_offset": (ctypes.c_size_t, ctypes.c_void_p),
    "gguf_get_n_tensors": (ctypes.c_int64, ctypes.c_void_p),
    "gguf_get_tensor_name": (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64),
    "gguf_get_tensor_offset": (ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64),
    "gguf_get_tensor_size": (ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64),
}.items():
    _function = getattr(_gguf, _name)
    _function.restype, _function.argtypes = _result, _arguments

# Of gguf.h.
_STRING, _ARRAY = 8, 9


def file_tensors(path: Path, file: int) -> list[FileTensor]:
    """Where the tensors of a GGUF lie in it, told as those of the file with this index. None
    for what llama.cpp cannot read: a load says why."""
    with _opened(path) as header:
        if header is None:
            return []
        data = _gguf.gguf_get_data_offset(header)
        tensors = []
        for i in range(_gguf.gguf_get_n_tensors(header)):
            name = _gguf.gguf_get_tensor_name(header, i).decode(errors="replace")
            start = data + _gguf.gguf_get_tensor_offset(header, i)
            end = start + _gguf.gguf_get_tensor_size(header, i)
            tensors.append(FileTensor(name, file, Range(start, end)))
    return tensors


def vocabulary_overrides(path: Path) -> ctypes.Array[ctypes.Structure] | None:
    """Values for llama.cpp to take in place of the header's, so that the model has as many
    tokens and no text of them: a layout is the same without, and parsing a large vocabulary is
    most of the time that one takes. None if the header has not what that needs."""
    with _opened(path) as header:
        architecture = header and _find(header, b"general.architecture", _STRING)
        tokens = header and _find(header, b"tokenizer.ggml.tokens", _ARRAY)
        if architecture is None or tokens is None:
            return None
        size_key = _gguf.gguf_get_val_str(header, architecture) + b".vocab_size"
        n_tokens = _gguf.gguf_get_arr_n(header, tokens)
    if len(size_key) >= c.llama_model_kv_override.key.size:
        return None
    # One without a key ends them.
    overrides: ctypes.Array[ctypes.Structure] = (c.llama_model_kv_override * 3)()
    none, size, _ = overrides
    none.tag, none.key = c.LLAMA_KV_OVERRIDE_TYPE_STR, b"tokenizer.ggml.model"
    none.value.val_str = b"none"
    size.tag, size.key, size.value.val_i64 = c.LLAMA_KV_OVERRIDE_TYPE_INT, size_key, n_tokens
    return overrides


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    header = _gguf.gguf_init_from_file(bytes(path), _InitParams(True, None))
    try:
        yield header
    finally:
        # of nothing, too
        _gguf.gguf_free(header)


def _find(header: int, key: bytes, kind: int) -> int | None:
    """The value's index; None if there is none of this kind. Asking for another aborts."""
    index = int(_gguf.gguf_find_key(header, key))
    found = index >= 0 and _gguf.gguf_get_kv_type(header, index) == kind
    return index if found else None
