"""Reads one GGUF file's header under bounds, because gguf's own reader believes every count
and takes 11 s for a vocabulary of 262,144 tokens."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path

from gguf.constants import (
    GGUF_DEFAULT_ALIGNMENT,
    GGUFValueType,
    Keys,
)

from manifests.cursor import Cursor, open_cursor
from manifests.errors import InvalidGGUF
from manifests.source import Stamp
from manifests.tensors import Tensor, read_tensors

Scalar = bool | int | float | str

# Bounds of what is read. The largest headers in use are near 12 MB, 1,500 tensors, 100 keys
# and 800,000 strings (262,144 tokens and their merges).
MAX_HEADER_BYTES = 128 << 20
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 21
MAX_VALUE_BYTES = 1 << 20
MAX_KEPT_BYTES = 8 << 20
MAX_KEY_BYTES = 65_535  # of the GGUF specification

_VERSIONS = (2, 3)
_SCALARS: dict[int, struct.Struct] = {
    int(kind): struct.Struct(f"<{code}")
    for kind, code in (
        (GGUFValueType.UINT8, "B"),
        (GGUFValueType.INT8, "b"),
        (GGUFValueType.UINT16, "H"),
        (GGUFValueType.INT16, "h"),
        (GGUFValueType.UINT32, "I"),
        (GGUFValueType.INT32, "i"),
        (GGUFValueType.FLOAT32, "f"),
        (GGUFValueType.BOOL, "?"),
        (GGUFValueType.UINT64, "Q"),
        (GGUFValueType.INT64, "q"),
        (GGUFValueType.FLOAT64, "d"),
    )
}
_STRING = int(GGUFValueType.STRING)
_ARRAY = int(GGUFValueType.ARRAY)


@dataclass(frozen=True)
class Skipped:
    """A value that was passed over: an array, or a string too long to keep."""

    kind: int
    """GGUFValueType of the items."""
    count: int
    """Items of an array, bytes of a string."""
    offset: int
    """Of the first item in the file."""


@dataclass
class Scan:
    """The header of one file. Filled while it is read, then left alone."""

    path: Path
    stamp: Stamp
    """Of the file as it was before it was read."""
    metadata: dict[str, Scalar] = field(default_factory=dict)
    skipped: dict[str, Skipped] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    special_tokens: dict[str, str] = field(default_factory=dict)
    """Text of the BOS and EOS tokens, by the key of their id."""


def scan(path: Path) -> Scan:
    """Read and check the header of one file. Raises InvalidGGUF."""
    with open_cursor(path, MAX_HEADER_BYTES) as cursor:
        result = Scan(path, cursor.stamp)
        n_tensors, n_keys = _read_counts(cursor)
        _KeyReader(cursor, result).read(n_keys)
        result.tensors = read_tensors(cursor, n_tensors, _alignment(result))
        for key in (Keys.Tokenizer.BOS_ID, Keys.Tokenizer.EOS_ID):
            _read_special_token(cursor, result, key)
        return result


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    magic = cursor.take(4)
    if magic != b"GGUF":
        raise InvalidGGUF(cursor.path, f"is not a GGUF file: it starts with {magic!r}")
    version = cursor.u32()
    if version and version & 0xFFFF == 0:
        raise InvalidGGUF(cursor.path, "is a big-endian GGUF; convert it to little-endian")
    if version not in _VERSIONS:
        raise InvalidGGUF(cursor.path, f"is GGUF version {version:,}; versions 2 and 3 are read")
    n_tensors, n_keys = cursor.u64(), cursor.u64()
    cursor.at_most(n_tensors, MAX_TENSORS, "tensors")
    cursor.at_most(n_keys, MAX_KEYS, "keys")
    return n_tensors, n_keys


class _KeyReader:
    """Reads the keys and their values. Keeps scalars and short strings."""

    def __init__(self, cursor: Cursor, into: Scan) -> None:
        self._cursor = cursor
        self._into = into
        self._strings_left = MAX_STRINGS
        self._bytes_left = MAX_KEPT_BYTES

    def read(self, count: int) -> None:
        for index in range(count):
            key = self._cursor.name(MAX_KEY_BYTES, f"key {index:,}")
            self._bytes_left -= len(key)
            if self._bytes_left < 0:
                raise InvalidGGUF(self._cursor.path, f"has over {MAX_KEPT_BYTES:,} bytes of keys")
            if key in self._into.metadata or key in self._into.skipped:
                raise InvalidGGUF(self._cursor.path, f"has the key {key!r} twice")
            self._read_value(key, self._cursor.u32())

    def _read_value(self, key: str, kind: int) -> None:
        if kind == _STRING:
            self._read_string(key)
        elif kind == _ARRAY:
            self._skip_array(key)
        elif kind in _SCALARS:
            (value,) = self._cursor.unpack(_SCALARS[kind])
            # NaN and infinity mean nothing here and cannot be written as JSON.
            if math.isfinite(value):
                self._into.metadata[key] = value
        else:
            raise InvalidGGUF(self._cursor.path, f"key {key!r} has the unknown value type {kind}")

    def _read_string(self, key: str) -> None:
        length, offset = self._cursor.u64(), self._cursor.position
        if length > min(MAX_VALUE_BYTES, self._bytes_left):
            self._cursor.skip(length)
            self._into.skipped[key] = Skipped(_STRING, length, offset)
            return
        self._bytes_left -= length
        self._into.metadata[key] = self._cursor.take(length).decode(errors="replace")

    def _skip_array(self, key: str) -> None:
        kind, count, offset = self._cursor.u32(), self._cursor.u64(), self._cursor.position
        if kind == _STRING:
            if count > self._strings_left:
                raise InvalidGGUF(
                    self._cursor.path,
                    f"key {key!r} claims {count:,} strings; {MAX_STRINGS:,} are read in a file",
                )
            self._strings_left -= count
            self._cursor.skip_strings(count)
        elif kind in _SCALARS:
            self._cursor.skip(count * _SCALARS[kind].size)
        else:
            raise InvalidGGUF(self._cursor.path, f"key {key!r} is an array of value type {kind}")
        self._into.skipped[key] = Skipped(kind, count, offset)


def _read_special_token(cursor: Cursor, result: Scan, id_key: str) -> None:
    tokens = result.skipped.get(Keys.Tokenizer.LIST)
    token_id = result.metadata.get(id_key)
    if tokens is None or tokens.kind != _STRING or not isinstance(token_id, int):
        return
    if not 0 <= token_id < tokens.count:
        return
    cursor.seek(tokens.offset)
    cursor.skip_strings(token_id)
    length = cursor.u64()
    if length <= MAX_VALUE_BYTES:
        result.special_tokens[id_key] = cursor.take(length).decode(errors="replace")


def _alignment(result: Scan) -> int:
    alignment = result.metadata.get(Keys.General.ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment < 1 << 32 or alignment & (alignment - 1):
        raise InvalidGGUF(result.path, f"has alignment {alignment!r}, which is no power of two")
    return alignment
