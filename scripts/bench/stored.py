"""The measured model in a store of its own."""

from __future__ import annotations

from pathlib import Path

from bench.contenders import MODEL_NAME
from manifests.create import pull_local
from manifests.edit import apply_edit
from manifests.errors import ManifestError
from manifests.manifest import Manifest
from manifests.names import parse_name
from manifests.store import Store
from provision.failure import Failure
from provision.run import say


def stored(model: Path, home: Path, threads: int) -> tuple[Path, ...]:
    """Its blobs: one, or one for each file of a split. Raises Failure."""

    def with_threads(manifest: Manifest) -> Manifest:
        return apply_edit(manifest, {"n_threads": threads}, None, modes=())[0]

    say(f"storing {model}")
    store, name = Store(home), parse_name(MODEL_NAME)
    try:
        pull_local(store, name, model)
        manifest = store.edit(name, with_threads)
    except ManifestError as error:
        raise Failure(f"{model}: {error}") from error
    return tuple(store.blob_path(blob.digest) for blob in manifest.blobs)
