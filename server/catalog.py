"""From a model's name to all that a request needs of it: options, defaults, template, spec."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manifests.errors import ManifestError
from manifests.manifest import Details, Manifest, Parameters, write_manifest
from manifests.names import ModelName, parse_name
from manifests.precedence import Effective, OptionValue, resolve_loader, resolve_parameters
from manifests.store import Store
from residency.modes import AVAILABLE, DEFAULT_MODE
from server.calls import ModelSpec
from server.errors import BadRequest
from server.protocol import Load, Sampling
from server.sampling import normal_seed
from server.settings import Settings
from server.templates import ChatMessage

log = logging.getLogger("corral.catalog")

# Enough for a conversation, and its KV cache small beside the weights; a model that was
# trained on less gets less.
DEFAULT_N_CTX = 4096
_NOT_SAMPLING = {"stop", "num_predict"}


@dataclass(frozen=True)
class Model:
    """A stored model with everything resolved that does not depend on a request."""

    name: str
    manifest: Manifest
    loader: Mapping[str, Effective]
    parameters: Parameters
    paths: tuple[str, ...]
    keep_alive: float

    @property
    def modified_at(self) -> float:
        return self.manifest.modified_at.timestamp()

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest: changes with every edit."""
        return hashlib.sha256(write_manifest(self.manifest).encode()).hexdigest()

    @property
    def sampling(self) -> Sampling:
        """The defaults of a request that says nothing."""
        given = self.parameters.model_dump(exclude_none=True, exclude=_NOT_SAMPLING)
        return normal_seed(Sampling(**given))

    @property
    def stop(self) -> tuple[str, ...]:
        return self.parameters.stop or ()

    @property
    def max_tokens(self) -> int:
        limit = self.parameters.num_predict
        return -1 if limit is None else limit

    @property
    def template(self) -> str | None:
        """The manifest's own, else the GGUF's."""
        return self.manifest.template or self.manifest.details.chat_template

    @property
    def system(self) -> str | None:
        return self.manifest.system

    @property
    def messages(self) -> list[ChatMessage]:
        return [ChatMessage(m.role, m.content) for m in self.manifest.messages]

    @property
    def bos_token(self) -> str:
        return self.manifest.details.bos_token or ""

    @property
    def eos_token(self) -> str:
        return self.manifest.details.eos_token or ""

    def refuse_encoder(self) -> None:
        """Raises BadRequest if the model cannot write text."""
        if not self.manifest.details.causal:
            raise BadRequest(
                f"{self.name} is an encoder: it makes embeddings and writes no text", param="model"
            )

    def spec(self) -> ModelSpec:
        """What to load now."""
        identity = " ".join(blob.digest for blob in self.manifest.blobs)
        return ModelSpec(self.name, identity, self._load(), self.keep_alive)

    def _load(self) -> Load:
        options: dict[str, Any] = {key: each.value for key, each in self.loader.items()}
        return Load(
            model=self.name,
            paths=list(self.paths),
            residency=str(options["weight_residency"]),
            pin=list(options["pin"]),
            repin_requests=options["repin_requests"],
            n_ctx=options["n_ctx"],
            n_batch=options["n_batch"],
            n_ubatch=options["n_ubatch"],
            prefill_slice=options["prefill_slice"],
            n_threads=options["n_threads"],
            n_gpu_layers=options["n_gpu_layers"],
            n_slots=options["num_parallel"],
            type_k=options["type_k"],
            type_v=options["type_v"],
            flash_attn=options["flash_attn"],
            pooling=options["pooling"],
        )


def loader_defaults(details: Details) -> dict[str, OptionValue]:
    """The lowest rung of the ladder."""
    n_ctx = min(DEFAULT_N_CTX, details.context_length or DEFAULT_N_CTX)
    return {
        "weight_residency": DEFAULT_MODE.value,
        "pin": (),
        "repin_requests": 0,
        "n_ctx": n_ctx,
        "n_batch": 2048,
        # An encoder reads a text whole or not at all.
        "n_ubatch": 512 if details.causal else max(512, n_ctx),
        # Beside a stream SmolLM2-135M reads prompts at 97 % of the rate that it has with whole
        # steps; with 64 at 92 %, with 32 at 86 % (docs/settings.md).
        "prefill_slice": 128,
        "n_threads": 0,
        "n_gpu_layers": -1,
        "num_parallel": 1,
        "type_k": "f16",
        "type_v": "f16",
        "flash_attn": "auto",
        "pooling": "model",
    }


class Catalog:
    """The stored models, as requests need them. Each warning is logged once."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._environment = settings.loader_environment()
        self._warned: dict[ModelName, list[str]] = {}

    async def model(self, name: str) -> Model:
        """Raises InvalidName, ModelMissing, InvalidManifest."""
        return await asyncio.to_thread(self._read, parse_name(name))

    async def models(self) -> list[Model]:
        """All that can be read; the rest are named in the log."""
        return await asyncio.to_thread(self._read_all)

    def _read_all(self) -> list[Model]:
        models = []
        for name in self._store.names():
            try:
                models.append(self._read(name))
            except ManifestError as error:
                self._warn(name, [error.message])
        return models

    def _read(self, name: ModelName) -> Model:
        manifest = self._store.get(name)
        layer = manifest.modelfile
        loader, warnings = resolve_loader(
            layer.loader if layer else None,
            manifest.loader,
            self._environment,
            AVAILABLE,
            loader_defaults(manifest.details),
        )
        self._warn(name, warnings)
        return Model(
            name=str(name),
            manifest=manifest,
            loader=loader,
            parameters=resolve_parameters(layer.parameters if layer else None, manifest.parameters),
            paths=tuple(str(self._store.blob_path(blob.digest)) for blob in manifest.blobs),
            keep_alive=self._settings.keep_alive,
        )

    def _warn(self, name: ModelName, warnings: list[str]) -> None:
        """Log what was not logged of this model when it was last read."""
        for warning in warnings:
            if warning not in self._warned.get(name, []):
                log.warning("%s: %s", name, warning)
        self._warned[name] = warnings
