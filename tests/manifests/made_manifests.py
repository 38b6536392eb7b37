"""Manifests to store, edit and break."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from manifests.manifest import Blob, Details, LoaderOptions, Manifest, ModelfileLayer, Parameters

THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MODES = ("eager", "lazy", "pinned", "lazy_then_pin_resident")


def made(**fields: Any) -> Manifest:
    """A manifest that names a blob nobody has, with the given fields."""
    given: dict[str, Any] = {
        "blobs": (Blob(digest="sha256-" + "0" * 64, size=9, filename="m.gguf"),),
        "details": Details(
            architecture="llama",
            quantization="Q4_1",
            parameter_count=1000,
            context_length=128,
            embedding_length=32,
            block_count=1,
            chat_template="{{ messages }}",
            weight_bytes=9,
        ),
        "created_at": THEN,
        "modified_at": THEN,
    }
    return Manifest(**{**given, **fields})


def layered() -> Manifest:
    """One whose Modelfile sets n_ctx and temperature, and whose own rung sets other things."""
    return made(
        loader=LoaderOptions(n_ctx=64, n_threads=2),
        parameters=Parameters(temperature=0.5, stop=("x", "y")),
        system="Be kind.",
        modelfile=ModelfileLayer(
            loader=LoaderOptions(n_ctx=32),
            parameters=Parameters(temperature=0.1),
            text="FROM x",
        ),
    )
