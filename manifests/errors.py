"""What can be wrong with a model, its files or its settings, as types that carry their message."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

# Characters. What is wrong may be as long as its sender pleases, what is said of it not.
_MAX_MESSAGE = 4096
_MAX_PATH = 1024


class ManifestError(Exception):
    """Root of what this package raises for bad input and failed storage."""

    def __init__(self, message: str) -> None:
        # A path may hold bytes that are no UTF-8; a message has to be text everywhere.
        self.message = message[:_MAX_MESSAGE].encode(errors="replace").decode()
        super().__init__(self.message)


class InvalidName(ManifestError):
    """The text is no model name."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"invalid model name {text[:300]!r}: {why}")


class ModelMissing(ManifestError):
    """No model is stored under the name."""

    def __init__(self, name: object) -> None:
        super().__init__(f"model {str(name)!r} not found")


class InvalidGGUF(ManifestError):
    """The file is not one that llama.cpp could load."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{str(path)[-_MAX_PATH:]}: {why}")


class InvalidManifest(ManifestError):
    """A stored manifest cannot be used; other models are unaffected."""

    def __init__(self, source: str, why: str) -> None:
        super().__init__(f"{source}: {why}")


class ModelfileError(ManifestError):
    """A Modelfile cannot be understood."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")


class UnknownKey(ManifestError):
    """A setting that does not exist."""

    def __init__(self, key: str, nearest: str | None, known: Collection[str]) -> None:
        hint = f", did you mean {nearest!r}?" if nearest else ";"
        super().__init__(f"unknown key {key[:200]!r}{hint} known keys: {', '.join(known)}")
        self.key = key


class InvalidValue(ManifestError):
    """A setting that exists, with a value it cannot take."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why


class StoreError(ManifestError):
    """The file system refused; nothing that was stored before has changed."""

    def __init__(self, path: Path, error: OSError) -> None:
        text = error.strerror or str(error)
        name = os.strerror(error.errno) if error.errno else text
        super().__init__(f"{path}: {text if text == name else f'{text} ({name})'}")


class StoreFull(ManifestError):
    """The file system has too little room. Byte counts."""

    def __init__(self, path: Path, need: int, available: int) -> None:
        super().__init__(
            f"{path}: {need:,} bytes are needed and {available:,} are free; "
            "free some space or move CORRAL_HOME to a larger disk"
        )
