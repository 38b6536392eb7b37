"""The models on disk: manifests and blobs, safe against kills, races and each other."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from manifests.blobs import Blobs, Progress
from manifests.durable import (
    TEMPORARY_PREFIX,
    io_errors,
    locked,
    make_folders,
    remove_file,
    try_locked,
    write_file,
)
from manifests.errors import InvalidName, InvalidValue, ModelMissing
from manifests.manifest import MAX_MANIFEST_BYTES, Blob, Manifest, read_manifest, write_manifest
from manifests.names import ModelName
from manifests.source import Stamp

_log = logging.getLogger(__name__)
_SUFFIX = ".json"
_ANY_DIGEST = re.compile(rb"sha256-[0-9a-f]{64}")


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Store:
    """A store under root, made if need be. Every call may block on disk or on another writer.

    Any number of stores, in threads and processes, may share a root. Failed I/O raises
    StoreError or StoreFull, and what was stored before is still there.
    """

    def __init__(self, root: Path, now: Callable[[], datetime] = _utc_now) -> None:
        self.root = root
        self._now = now
        self._manifests = root / "manifests"
        # Held while a manifest changes: short.
        self._lock = root / ".lock"
        # Shared by all who add blobs that no manifest names yet: long. Whoever collects
        # unnamed blobs has to hold it alone.
        self._adding = root / ".adding"
        self._blobs = Blobs(root / "blobs", self._lock)
        self.working_sets = root / "working-sets"
        """For whoever keeps something of a model beside it: a file here whose name is a blob's
        digest, up to the first dot, goes with that blob."""
        self._warned: dict[Path, list[str]] = {}
        with io_errors(root):
            make_folders(self._manifests)
            make_folders(root / "blobs")
            with locked(self._lock):
                self._sweep()
        self.collect()

    def names(self) -> list[ModelName]:
        """All stored models, sorted, readable or not."""
        with io_errors(self._manifests):
            return sorted(filter(None, map(self._name_of, self._files())))

    def get(self, name: ModelName) -> Manifest:
        """Raises ModelMissing, and InvalidManifest if the file is past use. What is ignored in
        it is logged once."""
        path = self._path(name)
        with io_errors(path):
            try:
                with path.open("rb") as file:
                    content = file.read(MAX_MANIFEST_BYTES + 1)
            except (FileNotFoundError, NotADirectoryError):
                raise ModelMissing(name) from None
        manifest, warnings = read_manifest(content, str(path))
        self._warn(path, warnings)
        return manifest

    def put(self, name: ModelName, manifest: Manifest) -> None:
        """Store the manifest under the name, in place of any other. Durable on return."""
        with io_errors(self._lock), locked(self._lock):
            self._write(name, manifest)

    def edit(self, name: ModelName, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Store what change makes of the manifest and return it; durable on return. No other
        writer comes between; what change raises leaves all as it was."""
        with io_errors(self._lock), locked(self._lock):
            before = self.get(name)
            after = change(before)
            if after == before:
                return before
            after = after.model_copy(update={"modified_at": self._now()})
            self._write(name, after)
            return after

    def copy(self, source: ModelName, target: ModelName) -> None:
        """Store source's manifest as target too. The blobs are shared."""
        with io_errors(self._lock), locked(self._lock):
            manifest = self.get(source)
            self._write(target, manifest.model_copy(update={"modified_at": self._now()}))
        self.collect()

    def delete(self, name: ModelName) -> None:
        """Remove the manifest and the blobs that only it named. Raises ModelMissing."""
        path = self._path(name)
        with io_errors(path), locked(self._lock):
            if not path.is_file():
                raise ModelMissing(name)
            remove_file(path)
            self._remove_empty_folders(path.parent)
        self._warned.pop(path, None)
        self.collect()

    def blob_path(self, digest: str) -> Path:
        """Raises InvalidValue for what is no digest."""
        return self._blobs.path(digest)

    def add_blob(
        self, path: Path, progress: Progress | None = None, checked: Stamp | None = None
    ) -> Blob:
        """Store the file's content, which is to be what was checked. Within adding(), else it
        may be collected before a manifest names it."""
        return self._blobs.add(path, progress, checked)

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Within it no blob is collected: from the first add_blob to the put that names it.
        What no manifest names at its end goes, also when it ends early."""
        try:
            with io_errors(self._adding), locked(self._adding, shared=True):
                yield
        finally:
            self.collect()

    def collect(self) -> None:
        """Remove blobs that no manifest names, unless someone is adding: then a later call
        will. A manifest that cannot be parsed still keeps the blobs it mentions."""
        with io_errors(self.root), locked(self._lock), try_locked(self._adding) as alone:
            if not alone:
                return
            named: set[str] = set()
            for path in self._files():
                named.update(each.decode() for each in _ANY_DIGEST.findall(path.read_bytes()))
            self._blobs.remove_except(named)
            for path in self.working_sets.glob("sha256-*"):
                if path.name.partition(".")[0] not in named:
                    path.unlink(missing_ok=True)

    def _path(self, name: ModelName) -> Path:
        return self._manifests.joinpath(*name.parts, name.tag + _SUFFIX)

    def _name_of(self, path: Path) -> ModelName | None:
        folder = path.parent.relative_to(self._manifests)
        try:
            return ModelName(folder.as_posix(), path.name.removesuffix(_SUFFIX))
        except InvalidName as error:
            self._warn(path, [f"{path} is passed over: {error.message}"])
            return None

    def _warn(self, path: Path, warnings: list[str]) -> None:
        """Log the warnings unless they were the last ones about this file."""
        if warnings != self._warned.get(path, []):
            for warning in warnings:
                _log.warning("%s", warning)
            self._warned[path] = warnings

    def _files(self) -> Iterator[Path]:
        """The manifests' files. Without the lock a folder may go meanwhile, with its files."""
        for folder, _, files in os.walk(self._manifests, onerror=_unless_gone):
            for file in files:
                path = Path(folder, file)
                if file.endswith(_SUFFIX) and path.is_file():
                    yield path

    def _write(self, name: ModelName, manifest: Manifest) -> None:
        path = self._path(name)
        content = write_manifest(manifest).encode()
        if len(content) > MAX_MANIFEST_BYTES:
            raise InvalidValue(
                str(name),
                f"the manifest would have {len(content):,} bytes, at most {MAX_MANIFEST_BYTES:,}",
            )
        with io_errors(path, len(content)):
            try:
                make_folders(path.parent)
                write_file(path, content)
            finally:
                self._remove_empty_folders(path.parent)

    def _remove_empty_folders(self, folder: Path) -> None:
        """Up from the folder, which need not be there."""
        while folder != self._manifests:
            if folder.exists():
                if any(folder.iterdir()):
                    return
                folder.rmdir()
            folder = folder.parent

    def _sweep(self) -> None:
        """Whoever writes a manifest holds the lock, as the caller does: what is left is dead."""
        for path in self._manifests.rglob(f"{TEMPORARY_PREFIX}*"):
            path.unlink()
        self._blobs.sweep()


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
