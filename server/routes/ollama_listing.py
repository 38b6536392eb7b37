"""Answers of the Ollama routes that tell of models. Sizes are bytes, times ISO 8601."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import msgspec

from manifests.manifest import Manifest
from manifests.precedence import OptionValue
from residency.ledger import Ledger
from server.calls import LoadedModel
from server.catalog import Model
from server.routes.ollama_shapes import Message, iso

# Ollama's "for ever" is the end of Go's durations, 292 years away; clients look for a far year.
FOR_EVER = "2318-01-01T00:00:00Z"


class Details(msgspec.Struct):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class Tag(msgspec.Struct):
    """A stored model."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details


class Tags(msgspec.Struct):
    models: list[Tag]


class Running(msgspec.Struct):
    """A loaded model. resident and locked are null where the kernel does not tell."""

    name: str
    model: str
    size: int
    """Weights and KV cache."""
    digest: str
    details: Details | None
    expires_at: str
    size_vram: int
    context_length: int
    pid: int
    status: str
    weight_residency: str
    """The mode in force; an edit that applies at the next load is not in it."""
    resident: int | None
    locked: int | None
    to_lock: int
    """What the mode and the pins have asked for so far, in whole pages."""
    pin_error: str
    """Why less is locked, and the remedy; empty if nothing was refused."""


class RunningList(msgspec.Struct):
    models: list[Running]


class Option(msgspec.Struct):
    value: OptionValue
    source: str


class Shown(msgspec.Struct):
    modelfile: str
    parameters: str
    template: str
    system: str
    license: str
    details: Details
    model_info: dict[str, bool | int | float | str]
    capabilities: list[str]
    messages: list[Message]
    modified_at: str
    effective: dict[str, Option]


def details(manifest: Manifest) -> Details:
    known = manifest.details
    return Details(
        manifest.parent_model or "",
        "gguf",
        known.architecture,
        [known.architecture],
        _parameter_size(known.parameter_count),
        known.quantization,
    )


def _parameter_size(count: int) -> str:
    if count >= 10**9:
        return f"{count / 1e9:.1f}B"
    return f"{count / 1e6:.2f}M" if count >= 10**6 else f"{count / 1e3:.2f}K"


def tag(model: Model) -> Tag:
    size = sum(blob.size for blob in model.manifest.blobs)
    return Tag(
        model.name,
        model.name,
        iso(model.manifest.modified_at),
        size,
        model.digest,
        details(model.manifest),
    )


def running(loaded: LoadedModel, model: Model | None, ledger: Ledger | None) -> Running:
    """A row of /api/ps; model is None when it was deleted while loaded."""
    ready = loaded.ready
    weights = ready.weights if ready else None
    return Running(
        name=loaded.spec.name,
        model=loaded.spec.name,
        size=weights.file + weights.anonymous + weights.device + ready.kv_bytes
        if ready and weights
        else 0,
        digest=model.digest if model else "",
        details=details(model.manifest) if model else None,
        expires_at=_expiry(loaded),
        size_vram=weights.device if weights else 0,
        context_length=ready.n_ctx if ready else loaded.spec.load.n_ctx,
        pid=loaded.pid,
        status="ready" if ready else "loading",
        weight_residency=loaded.spec.load.residency,
        resident=ledger.resident_bytes if ledger else None,
        locked=ledger.locked_bytes if ledger else None,
        to_lock=loaded.pin.bytes_asked if loaded.pin else 0,
        pin_error=loaded.pin.message if loaded.pin else "",
    )


def _expiry(loaded: LoadedModel) -> str:
    if loaded.expires_at is not None:
        return iso(datetime.fromtimestamp(loaded.expires_at, UTC))
    keep_alive = loaded.spec.keep_alive
    if keep_alive < 0:
        return FOR_EVER
    return iso(datetime.now(UTC) + timedelta(seconds=keep_alive))


def shown(model: Model) -> Shown:
    known = model.manifest.details
    arch = known.architecture
    layer = model.manifest.modelfile
    return Shown(
        modelfile=layer.text if layer else f"FROM {model.name}\n",
        parameters=_parameter_lines(model),
        template=model.template or "",
        system=model.system or "",
        license="\n\n".join(model.manifest.license),
        details=details(model.manifest),
        model_info={
            **known.metadata,
            "general.architecture": arch,
            "general.parameter_count": known.parameter_count,
            f"{arch}.context_length": known.context_length,
            f"{arch}.embedding_length": known.embedding_length,
            f"{arch}.block_count": known.block_count,
        },
        capabilities=["completion", "embedding"] if known.causal else ["embedding"],
        messages=[Message(m.role, m.content) for m in model.messages],
        modified_at=iso(model.manifest.modified_at),
        effective={key: Option(e.value, e.source) for key, e in model.loader.items()},
    )


def _parameter_lines(model: Model) -> str:
    """As in a Modelfile, without the word PARAMETER."""
    lines = []
    for name, value in model.parameters.model_dump(exclude_none=True).items():
        for one in value if isinstance(value, tuple | list) else (value,):
            lines.append(f"{name:<30} {json.dumps(one, ensure_ascii=False)}")
    return "\n".join(lines)
