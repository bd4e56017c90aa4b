"""The run's folder: the names of its entries, and the lock that shows that a run uses it.

The lock is an flock of the operating system, so it ends with its process and needs no cleanup after a kill. It is
separate from the lock of the ledger. On one machine the driver holds it: two runs in one folder would remove each
other's Ray session and shards. In a cluster each pod has its own folder, and the lock delays the pod's termination: the
pod's preStop hook sets the stop flag and waits until no process holds the lock (`children.rayjob` of the operator).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tensorguard.disk_full import names_file

LOCK_FILE = ".run.lock"
WORK_FOLDER = ".work"
"""Folder of the shards and of Ray Train's files; it is removed when the run ends."""
RAY_TRAIN_FOLDER = "ray-train"
"""Folder of Ray Train's files, inside `WORK_FOLDER`."""


class RunFolderError(Exception):
    """The folder is not writable, or another run uses it. `str()` is a sentence."""


@contextmanager
def lock_run_folder(directory: Path) -> Iterator[None]:
    """Hold the lock of the folder inside the with block. Creates the folder if it does not exist.

    Raises:
        RunFolderError: the folder is not writable, or another run holds the lock.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = _open(directory)
    except (FileExistsError, NotADirectoryError) as error:
        raise RunFolderError(f"{directory} is not a folder; choose another --output-dir") from error
    except OSError as error:
        raise RunFolderError(
            f"{directory} is not writable: {error.strerror}; choose another --output-dir, or fix its permissions"
        ) from error
    try:
        if not _try_lock(descriptor):
            raise RunFolderError(
                f"another run uses {directory}; wait until it has ended, or choose another --output-dir"
            )
        yield
    finally:
        os.close(descriptor)


def hold_run_lock(directory: Path) -> Callable[[], None]:
    """Hold the lock, so that this pod is not terminated, until the process ends or calls the returned function.

    Call this once in a process.
    """
    held = ExitStack()
    descriptor = _open(directory)
    held.callback(os.close, descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits for an earlier holder, which is about to end
    return held.close


def is_run_locked(directory: Path) -> bool:
    """Whether a process holds the lock of the folder."""
    descriptor = _open(directory)
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def write_owner_only(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read, with all of its content or not at all.

    Raises FileExistsError if it exists.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with names_file(path), os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError:
        path.unlink()
        raise


def replace_owner_only(path: Path, content: bytes) -> None:
    """Create or replace a file that only its owner can read. The old one stays if the new one cannot be written."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    try:
        write_owner_only(new, content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _open(directory: Path) -> int:
    return os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)


def _try_lock(descriptor: int) -> bool:
    """Take the lock if no process holds it; return whether it was taken."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
