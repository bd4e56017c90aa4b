"""Stores checkpoints in a folder of any fsspec file system. A checkpoint is either complete or absent.

A checkpoint is a folder of small files with `manifest.json`, which lists each file with its SHA-256. On a local disk
the folder is written under a temporary name, synced and renamed. An object store cannot rename: there the manifest is
written last, and a folder without one is not a checkpoint. The digest of a checkpoint is the digest of its manifest.
The ledger records this digest.

Signatures lie beside the files and are not in the manifest. A signer gets the digests of all files as they are stored,
the manifest included (`Sign`).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from tensafe_api.reasons import Reason
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.statement.contents import canonical_json, digest
from tensorguard.storage import (
    GIT_LFS_FIX,
    GIT_LFS_POINTER,
    PVC_SCHEME,
    RetryingFileSystem,
    explain_storage_error,
    filesystem_options,
    sync_directory,
    write_files,
)

MANIFEST = "manifest.json"
Sign = Callable[[str, Mapping[str, str]], Mapping[str, bytes]]
"""From the name of a checkpoint and the digests of its files, the further files that are written beside them."""
_UNFINISHED = ".unfinished-"
"""Prefix of temporary folders, which are not checkpoints."""


class CheckpointError(Exception):
    """A checkpoint cannot be read or written. `str()` is a sentence for the user."""

    reason: ClassVar[Reason] = Reason.CHECKPOINT_UNWRITABLE


class CheckpointCorrupt(CheckpointError):
    """A checkpoint's files do not match its manifest, or its manifest does not match the digest in the ledger."""

    reason: ClassVar[Reason] = Reason.CHECKPOINT_CORRUPT


class CheckpointAbsent(CheckpointCorrupt):
    """A checkpoint lacks a file. `file`: its name."""

    def __init__(self, message: str, file: str) -> None:
        super().__init__(message)
        self.file = file


class CheckpointConflict(CheckpointError):
    """The folder has the checkpoints of another job."""

    reason: ClassVar[Reason] = Reason.INVALID_MANIFEST


class CheckpointStore:
    """The checkpoints under one URI."""

    def __init__(self, uri: str, options: Mapping[str, Any] | None = None, public_uri: str | None = None) -> None:
        """Refer to a folder, without creating it.

        Args:
            uri: a path or any fsspec URI.
            options: of fsspec, such as an S3 endpoint.
            public_uri: the address of this folder outside this machine, if `uri` is a mount point; None otherwise.
        """
        self._public_uri = public_uri
        self._fs_without_retry = fsspec.filesystem(filesystem_options(uri, None)[0], **(options or {}))
        self._root = self._fs_without_retry._strip_protocol(uri)
        self._local = isinstance(self._fs_without_retry, LocalFileSystem)
        self._fs = self._fs_without_retry if self._local else RetryingFileSystem(self._fs_without_retry)

    @classmethod
    def for_job(cls, job: TenSafeTrainingJob, mounts: str | None = None) -> CheckpointStore:
        """The store of a job's checkpoints. A folder below `mounts` has a pvc:// address for others."""
        uri = job.spec.checkpoint.uri
        _, options = filesystem_options(uri, job.spec.storage)
        mounted = mounts is not None and uri.startswith(f"{mounts}/")
        return cls(uri, options, f"{PVC_SCHEME}{uri.removeprefix(f'{mounts}/')}" if mounted else None)

    def check_writable(self, *, wait: bool = False) -> None:
        """Raise CheckpointError unless a file can be written here. Leaves nothing behind but the folder.

        Args:
            wait: whether to retry while the store is unavailable. Do not, while a user waits who may have misspelt it.
        """
        fs = self._fs if wait else self._fs_without_retry
        probe = f"{self._root}/{_UNFINISHED}{uuid.uuid4().hex}"
        try:
            fs.makedirs(self._root, exist_ok=True)
            fs.pipe_file(probe, b"")
            with contextlib.suppress(FileNotFoundError):  # an earlier try removed it
                fs.rm_file(probe)
        except Exception as error:  # each file system has its own error classes
            raise CheckpointError(
                f"{self._root} cannot be written to: {_describe(error)}; choose another place or fix its permissions"
            ) from error

    def uri(self, name: str) -> str:
        """The address of a checkpoint, for users and for fsspec."""
        if self._public_uri is not None:
            return f"{self._public_uri.rstrip('/')}/{name}"
        return str(self._fs.unstrip_protocol(f"{self._root}/{name}"))

    def write(self, name: str, files: Mapping[str, bytes], sign: Sign | None = None) -> str:
        """Write a complete checkpoint and return its digest. Replaces a checkpoint of the same name."""
        manifest = manifest_of(files)
        digests = {MANIFEST: digest(manifest), **_listing(manifest)}
        self._store(name, {**files, **(sign(name, digests) if sign is not None else {}), MANIFEST: manifest})
        return digest(manifest)

    def copy(self, name: str, expected: str, to: CheckpointStore) -> None:
        """Copy a checkpoint to another store, as its bytes are stored, with its signatures.

        Args:
            name: of the checkpoint.
            expected: its digest.
            to: the other store. A checkpoint of the same name there is replaced.

        Raises:
            CheckpointCorrupt: it is not the checkpoint with this digest; `CheckpointAbsent` where it is gone.
            CheckpointError: a store refuses.
        """
        listing = self.listing(name)
        stored = self.read_beside(name, self.entries(name))
        if missing := sorted(listing.keys() - stored.keys()):
            raise CheckpointAbsent(f"{self.uri(name)} lacks {missing[0]}; {_FIX_CORRUPT}", missing[0])
        changed = [file for file in sorted(listing) if digest(stored[file]) != listing[file]]
        if changed or listing[MANIFEST] != expected:
            raise CheckpointCorrupt(f"{self.uri(name)} is corrupt: {(*changed, MANIFEST)[0]} is not what was written")
        to._store(name, {**{file: stored[file] for file in stored if file != MANIFEST}, MANIFEST: stored[MANIFEST]})

    def digest(self, name: str) -> str:
        """The digest of a checkpoint. Raises as `listing`."""
        return self.listing(name)[MANIFEST]

    def _store(self, name: str, stored: Mapping[str, bytes]) -> None:
        """Store files as they are, of which the manifest is the last."""
        try:
            if self._local:
                self._write_local(name, stored)
            else:
                self._write_remote(name, stored)
        except _failures(self._local) as error:
            raise CheckpointError(f"{self.uri(name)} cannot be written: {_describe(error)}; {_FIX_WRITE}") from error

    def read(self, name: str, expected: str | None = None, only: Collection[str] | None = None) -> dict[str, bytes]:
        """A checkpoint's files (or `only` some of them), each checked against the manifest. The manifest is checked
        against the digest `expected`.

        Raises:
            CheckpointCorrupt: names the file that was changed; `CheckpointAbsent` the one that is missing.
            CheckpointError: if the store refuses the read.
        """
        uri = self.uri(name)
        try:
            manifest = self._fetch(name, MANIFEST)
            if expected is not None and digest(manifest) != expected:
                raise CheckpointCorrupt(
                    f"{uri} is not the checkpoint that the ledger recorded: its manifest was changed; {_FIX_CORRUPT}"
                )
            listing = _listing(manifest)
            files = {file: self._fetch(name, file) for file in listing if only is None or file in only}
        except FileNotFoundError as error:
            missing = Path(str(error.filename or error)).name
            raise CheckpointAbsent(f"{uri} lacks {missing}; {_FIX_CORRUPT}", missing) from error
        except _UNREADABLE as error:
            raise CheckpointCorrupt(f"{uri} has an unreadable {MANIFEST}; {_FIX_CORRUPT}") from error
        for file in sorted(set(only or ()) - files.keys()):
            raise CheckpointAbsent(f"{uri} lacks {file}; {_FIX_CORRUPT}", file)
        for file, content in files.items():
            if digest(content) != listing[file]:
                if content.startswith(GIT_LFS_POINTER):
                    raise CheckpointCorrupt(f"{uri} is incomplete: {file} is a Git LFS pointer; {GIT_LFS_FIX}")
                raise CheckpointCorrupt(f"{uri} is corrupt: {file} is not what was written; {_FIX_CORRUPT}")
        return files

    def read_beside(self, name: str, files: Collection[str]) -> dict[str, bytes]:
        """Those of `files` that exist beside a checkpoint, such as its signatures. Nothing is checked.

        Raises CheckpointError if the store refuses the read.
        """
        found = {}
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                found[file] = self._fetch(name, file)
        return found

    def listing(self, name: str) -> dict[str, str]:
        """The digest of each file of a checkpoint by its manifest, and that of the manifest. The files are not read.

        Raises as `read`.
        """
        uri = self.uri(name)
        try:
            manifest = self._fetch(name, MANIFEST)
            return {MANIFEST: digest(manifest), **_listing(manifest)}
        except FileNotFoundError as error:
            raise CheckpointAbsent(f"{uri} lacks {MANIFEST}; {_FIX_CORRUPT}", MANIFEST) from error
        except _UNREADABLE as error:
            raise CheckpointCorrupt(f"{uri} has an unreadable {MANIFEST}; {_FIX_CORRUPT}") from error

    def entries(self, name: str) -> dict[str, str]:
        """What lies in the folder of a checkpoint: the type of each entry ("file", "directory" or "link") by its path
        in the folder. Raises CheckpointError if the store refuses.
        """
        root = f"{self._root}/{name}"
        try:
            self._fs.invalidate_cache()
            found = self._fs.find(root, withdirs=True, detail=True)
        except FileNotFoundError:
            return {}
        except _failures(self._local) as error:
            raise CheckpointError(f"{self.uri(name)} cannot be read: {_describe(error)}; {_FIX_READ}") from error
        entries = {
            path.removeprefix(root).lstrip("/"): "link" if info.get("islink") else str(info["type"])
            for path, info in found.items()
        }
        entries.pop("", None)
        return entries

    def names(self) -> list[str]:
        """The names of the complete checkpoints, sorted."""
        if not self._has(self._root):
            return []
        self._fs.invalidate_cache()
        found = (
            Path(entry["name"]).name for entry in self._fs.ls(self._root, detail=True) if entry["type"] == "directory"
        )
        return sorted(name for name in found if not name.startswith(_UNFINISHED) and self.exists(name))

    def exists(self, name: str) -> bool:
        """Whether there is a complete checkpoint of this name."""
        return self._has(f"{self._root}/{name}/{MANIFEST}")

    def remove(self, name: str) -> None:
        """Remove a checkpoint, its manifest first, so that an incomplete checkpoint is never listed."""
        with contextlib.suppress(FileNotFoundError):  # absent, or an earlier try removed it
            self._fs.rm_file(f"{self._root}/{name}/{MANIFEST}")
        if self._has(f"{self._root}/{name}"):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm(f"{self._root}/{name}", recursive=True)

    def remove_unfinished(self) -> None:
        """Remove the temporary folders of killed writers. Only the holder of the ledger may call this."""
        if not self._local or not self._fs.exists(self._root):
            return
        for leftover in Path(self._root).glob(f"{_UNFINISHED}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _has(self, path: str) -> bool:
        """Whether the path exists. (fsspec's `exists` returns False for any error, an outage included.)"""
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
            raise CheckpointError(f"{self.uri(name)} cannot be read: {_describe(error)}; {_FIX_READ}") from error

    def _write_remote(self, name: str, files: Mapping[str, bytes]) -> None:
        """The manifest is the last of `files`: the checkpoint exists once the manifest does."""
        self.remove(name)
        for file, content in files.items():
            self._fs.pipe_file(f"{self._root}/{name}/{file}", content)

    def _write_local(self, name: str, files: Mapping[str, bytes]) -> None:
        temporary = Path(self._root) / f"{_UNFINISHED}{name}-{uuid.uuid4().hex}"
        temporary.mkdir(parents=True)
        try:
            write_files(temporary, files)
            sync_directory(temporary)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)  # on a full disk, other files of the run need its space
            raise
        target = Path(self._root) / name
        if target.exists():  # renamed as well; `remove_unfinished` removes it later if this process is killed here
            target.rename(Path(self._root) / f"{_UNFINISHED}old-{name}-{uuid.uuid4().hex}")
        temporary.rename(target)
        sync_directory(Path(self._root))
        for old in Path(self._root).glob(f"{_UNFINISHED}old-{name}-*"):
            shutil.rmtree(old, ignore_errors=True)


def manifest_of(files: Mapping[str, bytes]) -> bytes:
    """The manifest of a checkpoint with these files: canonical JSON, so that no other bytes say the same."""
    listing = {file: {"sha256": digest(content), "size": len(content)} for file, content in files.items()}
    return canonical_json({"files": listing})


def checkpoint_at(place: str) -> tuple[CheckpointStore, str]:
    """The store of the checkpoint in a folder or at a URI, and its name. The environment has the credentials."""
    trimmed = place.rstrip("/")
    if "://" not in trimmed:
        trimmed = str(Path(trimmed).absolute())
    parent, _, name = trimmed.rpartition("/")
    _, options = filesystem_options(parent or "/", None)
    return CheckpointStore(parent or "/", options), name


_FIX_WRITE = "free space there, or fix its permissions, and resume"
_FIX_READ = "fix the cause, and resume"
_FIX_CORRUPT = (
    "move it away to resume from the previous checkpoint, or from the start if there is none (the steps since then are "
    "charged again)"
)


_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _listing(manifest: bytes) -> dict[str, str]:
    """The digest of each file by the content of a manifest. Raises one of `_UNREADABLE`."""
    listing = {file: entry["sha256"] for file, entry in json.loads(manifest)["files"].items()}
    if any("/" in file for file in listing):
        raise ValueError("a file of a checkpoint is in its folder")
    return listing


def _failures(local: bool) -> type[Exception]:
    """The errors that a file system may raise: OSError on a disk, any class in a library for remote storage."""
    return OSError if local else Exception


def _describe(error: Exception) -> str:
    """The cause, in words that contain nothing of a request or a file's contents."""
    if reason := explain_storage_error(error):
        return reason
    message = str(error).strip() if isinstance(error, OSError) else ""
    return message.splitlines()[0].rstrip(".") if message else type(error).__name__
