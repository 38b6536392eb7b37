"""Working sets on disk: what a model's requests touched, until its next load replays it.

They save time and nothing else: what cannot be read or written is a warning and never an error.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from manifests.durable import TEMPORARY_PREFIX, make_folders, write_file
from residency.modes import parse_mode, plan
from server.calls import ModelSpec
from server.protocol import FileRuns, WorkingSet

log = logging.getLogger("corral.working_sets")

MAX_FILES = 64
"""A set is some 60 KB at most. The ones that were written longest ago go first."""
_MAX_FILE_BYTES = 1 << 20
_SUFFIX = ".msgpack"


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file's content."""

    identity: str
    """Of the weights, as in calls.ModelSpec."""
    files: FileRuns


class WorkingSets:
    """In a folder of the store that removes a file named by a blob's digest with the blob.

    One thread reads and writes, in the order of the calls: a load after an unload finds what the
    unload has kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, "corral-working-sets")

    async def recall(self, spec: ModelSpec) -> FileRuns:
        """What was kept of these weights in this mode; nothing in modes that read all."""
        if not plan(parse_mode(spec.load.residency)).leaves_out:
            return []
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._recall, spec)

    async def keep(self, spec: ModelSpec, found: WorkingSet) -> None:
        """In place of what was kept before. On disk when this returns."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._keep, spec, found)

    def close(self) -> None:
        """Waits for what is being written."""
        self._thread.shutdown()

    def _recall(self, spec: ModelSpec) -> FileRuns:
        path = self._path(spec, spec.load.residency)
        try:
            with path.open("rb") as file:
                kept = msgspec.msgpack.decode(file.read(_MAX_FILE_BYTES), type=_Kept)
            if kept.identity != spec.identity:
                raise ValueError("it is of other weights")
        except FileNotFoundError:
            return []
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            log.warning(
                "model=%s the working set in %s is passed over, and pages come as they are "
                "touched: %s",
                spec.name,
                path,
                error,
            )
            return []
        log.info("model=%s replays its working set, %s", spec.name, _told(kept.files))
        return kept.files

    def _keep(self, spec: ModelSpec, found: WorkingSet) -> None:
        if not Path(spec.load.paths[0]).exists():
            # It was deleted while it was loaded.
            return
        try:
            make_folders(self._folder)
            content = msgspec.msgpack.encode(_Kept(spec.identity, found.files))
            write_file(self._path(spec, found.residency), content)
            self._sweep()
        except OSError as error:
            log.warning("model=%s its working set is not kept: %s", spec.name, error)
            return
        log.info("model=%s has its working set kept, %s", spec.name, _told(found.files))

    def _path(self, spec: ModelSpec, residency: str) -> Path:
        """By the first blob's digest; the file says whether it is of the other splits too."""
        return self._folder / f"{Path(spec.load.paths[0]).name}.{residency}{_SUFFIX}"

    def _sweep(self) -> None:
        """Removes what a killed daemon had begun to write, and files beyond MAX_FILES."""
        for path in self._folder.glob(f"{TEMPORARY_PREFIX}*"):
            path.unlink(missing_ok=True)
        newest = sorted(
            self._folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime, reverse=True
        )
        for path in newest[MAX_FILES:]:
            path.unlink(missing_ok=True)


def _told(files: FileRuns) -> str:
    n_bytes = sum(end - start for runs in files for start, end in runs)
    return f"{n_bytes / 1e6:.1f} MB in {sum(map(len, files))} runs"
