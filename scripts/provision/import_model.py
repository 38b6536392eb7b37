"""The command import_model: a GGUF file into the store under a name, unless that name is taken.

Runs in the environment that prepare() made, as it needs corral's own packages.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from manifests.create import pull_local
from manifests.edit import apply_edit
from manifests.errors import ManifestError
from manifests.manifest import Manifest
from manifests.names import parse_name
from manifests.store import Store
from provision.failure import Failure
from server.settings import Settings, SettingsError

# The model card's advice for sampling, and two bounds: so small a model else repeats itself
# until its context is full.
_PARAMETERS = {"temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.1, "num_predict": 1024}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("import_model", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("path", type=Path)
    options = parser.parse_args(argv)
    try:
        settings, _ = Settings.from_environ(os.environ)
        store, name = Store(settings.home), parse_name(options.name)
        if name not in store.names():
            pull_local(store, name, options.path)
            store.edit(name, _with_defaults)
    except (SettingsError, ManifestError) as error:
        raise Failure(str(error)) from error
    return 0


def _with_defaults(manifest: Manifest) -> Manifest:
    edited, _ = apply_edit(manifest, None, _PARAMETERS, modes=())
    return edited
