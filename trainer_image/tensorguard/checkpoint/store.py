"""Where checkpoints lie: a folder of any fsspec file system, in which a checkpoint is whole or not there.

A checkpoint is a folder of small files with `manifest.json`, which names each of them with its SHA-256. On a local disk
the folder is written under another name, synced and renamed; in an object store, which cannot rename, the manifest is
written last and a folder without one does not count. The digest of a checkpoint is the digest of its manifest: what the
ledger records, and what a signature will cover.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from tensafe_api.reasons import Reason
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.statement import canonical_json, digest
from tensorguard.storage import PVC_SCHEME, RetryingFileSystem, explain_storage_error, filesystem_options

MANIFEST = "manifest.json"
_ASIDE = ".unfinished-"


class CheckpointError(Exception):
    """A checkpoint cannot be read or written. `str()` is a sentence."""

    reason: ClassVar[Reason] = Reason.CHECKPOINT_UNWRITABLE


class CheckpointCorrupt(CheckpointError):
    """A checkpoint's files are not what its manifest says, or its manifest not what the ledger recorded."""

    reason: ClassVar[Reason] = Reason.CHECKPOINT_CORRUPT


class CheckpointConflict(CheckpointError):
    """Another job's checkpoints are there."""

    reason: ClassVar[Reason] = Reason.INVALID_MANIFEST


class CheckpointStore:
    """The checkpoints under one URI."""

    def __init__(self, uri: str, options: Mapping[str, Any] | None = None, known_as: str | None = None) -> None:
        """Args:
        uri: a path or any fsspec URI.
        options: fsspec's, such as an S3 endpoint.
        known_as: what everybody else calls this place, where it is a mount of this machine alone.
        """
        self._known_as = known_as
        self._eager, self._root = fsspec.url_to_fs(uri, **(options or {}))
        self._local = isinstance(self._eager, LocalFileSystem)
        self._fs = self._eager if self._local else RetryingFileSystem(self._eager)

    @classmethod
    def for_job(cls, job: TenSafeTrainingJob, mounts: str | None = None) -> CheckpointStore:
        """Where a job's checkpoints go; what lies in `mounts` is known by its pvc:// address."""
        uri = job.spec.checkpoint.uri
        _, options = filesystem_options(uri, job.spec.storage)
        mounted = mounts is not None and uri.startswith(f"{mounts}/")
        return cls(uri, options, f"{PVC_SCHEME}{uri.removeprefix(f'{mounts}/')}" if mounted else None)

    def check_writable(self, *, wait: bool = False) -> None:
        """Raise CheckpointError unless a file can be written here. Leaves nothing behind but the folder.

        Args:
            wait: whether to wait while the store is away; else a person waits, who may have misspelt it.
        """
        fs = self._fs if wait else self._eager
        probe = f"{self._root}/{_ASIDE}{uuid.uuid4().hex}"
        try:
            fs.makedirs(self._root, exist_ok=True)
            fs.pipe_file(probe, b"")
            with contextlib.suppress(FileNotFoundError):  # removed by a try that was not answered
                fs.rm_file(probe)
        except Exception as error:  # every file system has errors of its own
            raise CheckpointError(
                f"{self._root} cannot be written to: {_sentence(error)}; name another place or mend its permissions"
            ) from error

    def uri(self, name: str) -> str:
        """The address of a checkpoint, as fsspec and a person can use it."""
        if self._known_as is not None:
            return f"{self._known_as.rstrip('/')}/{name}"
        return str(self._fs.unstrip_protocol(f"{self._root}/{name}"))

    def write(self, name: str, files: Mapping[str, bytes]) -> str:
        """Write a checkpoint whole, replacing one of the same name, and return its digest."""
        listing = {file: {"sha256": digest(content), "size": len(content)} for file, content in sorted(files.items())}
        manifest = canonical_json({"files": listing})
        try:
            if self._local:
                self._write_local(name, {**files, MANIFEST: manifest})
            else:
                self._write_remote(name, {**files, MANIFEST: manifest})
        except _failures(self._local) as error:
            raise CheckpointError(f"{self.uri(name)} could not be written: {_sentence(error)}; {_MAKE_ROOM}") from error
        return digest(manifest)

    def read(self, name: str, expected: str | None = None, only: str | None = None) -> dict[str, bytes]:
        """A checkpoint's files (or `only` one of them), each checked against the manifest, and that against `expected`.

        Raises:
            CheckpointCorrupt: naming the file that is not what it should be.
            CheckpointError: where the store does not let it be read.
        """
        where = self.uri(name)
        try:
            manifest = self._fetch(name, MANIFEST)
            if expected is not None and digest(manifest) != expected:
                raise CheckpointCorrupt(
                    f"{where} is not the checkpoint that the ledger recorded: its manifest was changed; {_MEND}"
                )
            listing = {file: entry["sha256"] for file, entry in json.loads(manifest)["files"].items()}
            files = {file: self._fetch(name, file) for file in listing if only in (None, file)}
        except FileNotFoundError as error:
            raise CheckpointCorrupt(f"{where} lacks {Path(str(error.filename or error)).name}; {_MEND}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointCorrupt(f"{where} has an unreadable {MANIFEST}; {_MEND}") from error
        if only is not None and only not in files:
            raise CheckpointCorrupt(f"{where} lacks {only}; {_MEND}")
        for file, content in files.items():
            if digest(content) != listing[file]:
                raise CheckpointCorrupt(f"{where} is corrupt: {file} is not what was written; {_MEND}")
        return files

    def names(self) -> list[str]:
        """The checkpoints that are whole, sorted by name."""
        if not self._has(self._root):
            return []
        self._fs.invalidate_cache()
        found = (
            Path(entry["name"]).name for entry in self._fs.ls(self._root, detail=True) if entry["type"] == "directory"
        )
        return sorted(name for name in found if not name.startswith(_ASIDE) and self.exists(name))

    def exists(self, name: str) -> bool:
        """Whether there is a whole checkpoint of this name."""
        return self._has(f"{self._root}/{name}/{MANIFEST}")

    def remove(self, name: str) -> None:
        """Remove a checkpoint, its manifest first, so that it is never half there."""
        with contextlib.suppress(FileNotFoundError):  # not there, or removed by a try that was not answered
            self._fs.rm_file(f"{self._root}/{name}/{MANIFEST}")
        if self._has(f"{self._root}/{name}"):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm(f"{self._root}/{name}", recursive=True)

    def remove_unfinished(self) -> None:
        """Remove what killed writers left behind. Only for whoever holds the ledger."""
        if not self._local or not self._fs.exists(self._root):
            return
        for leftover in Path(self._root).glob(f"{_ASIDE}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _has(self, path: str) -> bool:
        """Whether something is there. (fsspec's own `exists` says no to whatever fails, an outage included.)"""
        try:
            self._fs.info(path)
        except FileNotFoundError:
            return False
        return True

    def _fetch(self, name: str, file: str) -> bytes:
        try:
            return bytes(self._fs.cat_file(f"{self._root}/{name}/{file}"))
        except FileNotFoundError:
            raise
        except _failures(self._local) as error:
            raise CheckpointError(f"{self.uri(name)} could not be read: {_sentence(error)}; {_LET_READ}") from error

    def _write_remote(self, name: str, files: Mapping[str, bytes]) -> None:
        """The manifest comes last in `files`: until it is there nothing is."""
        self.remove(name)
        for file, content in files.items():
            self._fs.pipe_file(f"{self._root}/{name}/{file}", content)

    def _write_local(self, name: str, files: Mapping[str, bytes]) -> None:
        aside = Path(self._root) / f"{_ASIDE}{name}-{uuid.uuid4().hex}"
        aside.mkdir(parents=True)
        for file, content in files.items():
            with (aside / file).open("wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
        _sync(aside)
        place = Path(self._root) / name
        if place.exists():  # the old one steps aside by a rename as well, and is swept up later if we are killed here
            place.rename(Path(self._root) / f"{_ASIDE}old-{name}-{uuid.uuid4().hex}")
        aside.rename(place)
        _sync(Path(self._root))
        for old in Path(self._root).glob(f"{_ASIDE}old-{name}-*"):
            shutil.rmtree(old, ignore_errors=True)


_MAKE_ROOM = "make room there, or mend its permissions, and resume"
_LET_READ = "mend that, and resume"
_MEND = (
    "move it away to resume from the one before it, or from the start where there is none (the steps since then are "
    "charged again)"
)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failures(local: bool) -> type[Exception]:
    """What a file system may raise: somebody else's have errors of their own, a disk has the system's."""
    return OSError if local else Exception


def _sentence(error: Exception) -> str:
    """Why, in words that are known to hold nothing of a request or a file."""
    if reason := explain_storage_error(error):
        return reason
    said = str(error).strip() if isinstance(error, OSError) else ""
    return said.splitlines()[0].rstrip(".") if said else type(error).__name__
