"""Makes a model of a local GGUF or of a stored model, checking all of it before storing any."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gguf.constants import Keys

from manifests.blobs import Progress
from manifests.errors import InvalidGGUF, InvalidManifest, InvalidName, InvalidValue, ModelMissing
from manifests.header import GGUFHeader, read_model, split_paths
from manifests.manifest import Blob, Details, LoaderOptions, Manifest, ModelfileLayer, Parameters
from manifests.modelfile import Modelfile
from manifests.names import ModelName, parse_name
from manifests.options import check_mode, set_options
from manifests.source import reading
from manifests.store import Store
from manifests.templates import refuse_go_template


def create(  # noqa: PLR0917 - two of the six are what is made, the rest where and how
    store: Store,
    name: ModelName,
    modelfile: Modelfile,
    base_dir: Path,
    modes: Collection[str],
    progress: Progress | None = None,
) -> Manifest:
    """Store the model that the Modelfile describes and return its manifest.

    FROM is a path (relative ones start at base_dir) or the name of a stored model, of which
    then all is inherited that the Modelfile leaves open. What could be either is a name if a
    model has it. Raises InvalidGGUF, InvalidValue, ModelMissing, StoreError, StoreFull.
    """
    check_mode("PARAMETER weight_residency", modelfile.loader.weight_residency, modes)
    if modelfile.template:
        refuse_go_template(modelfile.template)
    path = _as_path(store, modelfile.from_, base_dir)
    with store.adding():
        if path is not None:
            base = _manifest_of(store, _checked(path), progress)
        else:
            parent = parse_name(modelfile.from_)
            base = _child_of(store.get(parent), parent)
        manifest = _with_modelfile(base, modelfile)
        _refuse_unplaced(modelfile, manifest)
        store.put(name, manifest)
    return manifest


def pull_local(
    store: Store, name: ModelName, path: Path, progress: Progress | None = None
) -> Manifest:
    """Store a local GGUF under the name and return its manifest. A name that has these very
    files keeps its manifest, edits and all. Raises as create does."""
    with store.adding():
        manifest = _manifest_of(store, _checked(path), progress)
        current = _usable(store, name)
        if current is not None and _digests(current) == _digests(manifest):
            return current
        store.put(name, manifest)
    return manifest


@dataclass(frozen=True)
class _Source:
    """A model outside the store, with its header checked."""

    paths: list[Path]
    header: GGUFHeader


def _checked(path: Path) -> _Source:
    with reading(path):
        is_folder = path.is_dir()
    paths = split_paths(_only_model_in(path) if is_folder else path)
    return _Source(paths, read_model(paths))


def _only_model_in(folder: Path) -> Path:
    """The GGUF in the folder, or the first of its one split set."""
    with reading(folder):
        files = sorted(folder.glob("*.gguf"))
    if not files:
        raise InvalidGGUF(folder, "is a folder without a .gguf file")
    model = split_paths(files[0])
    others = [file.name for file in files if file not in model]
    if others:
        raise InvalidGGUF(
            folder, f"holds more than one model ({files[0].name}, {others[0]}): name the file"
        )
    return model[0]


def _manifest_of(store: Store, source: _Source, progress: Progress | None) -> Manifest:
    now = datetime.now(UTC)
    return Manifest(
        blobs=_add_blobs(store, source, progress),
        details=_details(source.header),
        created_at=now,
        modified_at=now,
    )


def _add_blobs(store: Store, source: _Source, progress: Progress | None) -> tuple[Blob, ...]:
    """Progress runs over all files together."""
    blobs: list[Blob] = []
    for path, stamp in zip(source.paths, source.header.stamps, strict=True):
        before = sum(blob.size for blob in blobs)

        def report(done: int, _total: int, before: int = before) -> None:
            if progress:
                progress(before + done, source.header.file_bytes)

        blobs.append(store.add_blob(path, report, stamp))
    return tuple(blobs)


def _details(header: GGUFHeader) -> Details:
    return Details(
        architecture=header.architecture,
        quantization=header.quantization,
        parameter_count=header.parameter_count,
        context_length=header.context_length,
        embedding_length=header.embedding_length,
        block_count=header.block_count,
        chat_template=header.chat_template,
        bos_token=header.bos_token,
        eos_token=header.eos_token,
        weight_bytes=header.weight_bytes,
        metadata={
            key: value
            for key, value in header.metadata.items()
            if key != Keys.Tokenizer.CHAT_TEMPLATE
        },
    )


def _as_path(store: Store, text: str, base_dir: Path) -> Path | None:
    """The path that FROM means, or None if it is a name. Raises InvalidValue if it is neither."""
    if text.startswith("~"):
        try:
            return Path(text).expanduser()
        except RuntimeError:
            raise InvalidValue("FROM", f"{text[:200]!r} names a home folder unknown here") from None
    path = base_dir / text
    if text.startswith(("/", "./", "../")) or text.lower().endswith(".gguf"):
        return path
    with reading(path):
        exists = path.exists()
    try:
        name = parse_name(text)
    except InvalidName:
        if exists:
            return path
        raise InvalidValue("FROM", f"{text[:200]!r} is neither a file nor a model name") from None
    return path if exists and name not in store.names() else None


def _child_of(parent: Manifest, name: ModelName) -> Manifest:
    now = datetime.now(UTC)
    return parent.model_copy(
        update={"created_at": now, "modified_at": now, "parent_model": str(name)}
    )


def _with_modelfile(base: Manifest, modelfile: Modelfile) -> Manifest:
    """The base with what the Modelfile sets; a parent's Modelfile stays under it."""
    under = base.modelfile or ModelfileLayer()
    layer = ModelfileLayer(
        loader=LoaderOptions.model_validate(
            {**set_options(under.loader), **set_options(modelfile.loader)}
        ),
        parameters=Parameters.model_validate(
            {**set_options(under.parameters), **set_options(modelfile.parameters)}
        ),
        text=modelfile.text,
    )
    return base.model_copy(
        update={
            "modelfile": layer,
            "system": base.system if modelfile.system is None else modelfile.system,
            "template": modelfile.template or base.template,
            "messages": modelfile.messages or base.messages,
            "license": modelfile.licenses or base.license,
        }
    )


def _refuse_unplaced(modelfile: Modelfile, manifest: Manifest) -> None:
    """SYSTEM and MESSAGE shape a chat, and only a template gives them a place in the prompt."""
    if manifest.template or manifest.details.chat_template:
        return
    for instruction, text in (("SYSTEM", modelfile.system), ("MESSAGE", modelfile.messages)):
        if text:
            raise InvalidValue(
                instruction, "has no effect: the model has no chat template; add a TEMPLATE"
            )


def _usable(store: Store, name: ModelName) -> Manifest | None:
    try:
        return store.get(name)
    except (ModelMissing, InvalidManifest):
        return None


def _digests(manifest: Manifest) -> list[str]:
    return [blob.digest for blob in manifest.blobs]
