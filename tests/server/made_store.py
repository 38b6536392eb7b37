"""Manifests for a store, of weights that are not there."""

from __future__ import annotations

from datetime import UTC, datetime

from manifests.manifest import Blob, Details, Manifest

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def manifest(template: str | None) -> Manifest:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    details = Details(
        architecture="llama",
        quantization="Q4_1",
        parameter_count=135_000_000,
        context_length=8192,
        embedding_length=64,
        block_count=2,
        chat_template=template,
        bos_token="<s>",
        eos_token="</s>",
        weight_bytes=900,
        metadata={"llama.rope.freq_base": 10000.0, "llama.context_length": 8192},
    )
    blob = Blob(digest="sha256-" + "0" * 64, size=1000, filename="m.gguf")
    return Manifest(blobs=(blob,), details=details, created_at=moment, modified_at=moment)
