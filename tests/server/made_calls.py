"""Specs and calls made on the spot, for tests of the serving core and of the routes."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from server.calls import Call, EmbedCall, ModelSpec
from server.protocol import Load, Ready, Sampling, WeightBytes

_PATHS = [str(Path(__file__).parents[up]) for up in (0, 2)]
FAKE_WORKER = (
    sys.executable,
    "-c",
    f"import sys; sys.path[:0] = {_PATHS}; import fake_worker; fake_worker.main()",
)
"""A worker's command line; see fake_worker.py for what it can be told to do."""

_ids = count()


def made_spec(
    name: str = "a:latest",
    *,
    identity: str = "",
    n_slots: int = 1,
    keep_alive: float = 300,
    path: str = "ok",
    residency: str = "eager",
) -> ModelSpec:
    """A model that the fake worker loads; `path` says how it behaves."""
    load = Load(
        model=name,
        paths=[path],
        residency=residency,
        pin=[],
        repin_requests=0,
        n_ctx=512,
        n_batch=64,
        n_ubatch=64,
        prefill_slice=64,
        n_threads=1,
        n_gpu_layers=0,
        n_slots=n_slots,
        type_k="f16",
        type_v="f16",
        flash_attn="auto",
        pooling="model",
    )
    return ModelSpec(name, identity or f"sha256-{name}", load, keep_alive)


def made_ready(load_seconds: float = 0) -> Ready:
    """What a worker says of the model it has loaded."""
    return Ready(
        load_seconds=load_seconds,
        n_ctx=512,
        n_slots=1,
        weights=WeightBytes(file=3_000_000, anonymous=2_000_000),
        kv_bytes=1_000_000,
    )


def made_call(spec: ModelSpec, prompt: str = "echo 3", *, max_tokens: int = 8) -> Call:
    """A generation; `prompt` says what the fake worker answers."""
    return Call(
        id=f"call-{next(_ids)}",
        endpoint="/v1/completions",
        spec=spec,
        prompt=prompt,
        sampling=Sampling(),
        max_tokens=max_tokens,
    )


def made_embed(spec: ModelSpec, *inputs: str | list[int]) -> EmbedCall:
    """A request for embeddings; the inputs say what the fake worker answers."""
    return EmbedCall(f"call-{next(_ids)}", "/v1/embeddings", spec, list(inputs), False, None)
