"""The run's folder: what lies in it under which name, and who is at work there.

The lock is the operating system's (flock), so it dies with its process and needs no clearing away after a kill. It is
apart from the ledger's own. On one's own machine the driver holds it: two in one folder would remove each other's Ray
session and shards. In a cluster each pod has a folder, whose lock keeps the pod: its preStop hook raises the stop flag,
and waits until nobody is at work (`children.rayjob` of the operator).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

LOCK_FILE = ".run.lock"
WORK_FOLDER = ".work"
"""Shards, and what Ray Train keeps; it goes when the run ends."""
RAY_TRAIN_FOLDER = "ray-train"
"""In it: Ray Train's own."""


class RunFolderError(Exception):
    """The folder cannot be written to, or another run is at work in it. `str()` is a sentence."""


@contextmanager
def lock_run_folder(directory: Path) -> Iterator[None]:
    """Hold the folder, which is made where it does not exist. Raises RunFolderError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = _open(directory)
    except OSError as error:
        raise RunFolderError(
            f"{directory} cannot be written to: {error.strerror}; name another --output-dir, or mend its permissions"
        ) from error
    try:
        if not _taken(descriptor):
            raise RunFolderError(
                f"another run is at work in {directory}; wait for its end, or name another --output-dir"
            )
        yield
    finally:
        os.close(descriptor)


def hold_run_lock(directory: Path) -> Callable[[], None]:
    """Keep this process's pod from going, until the process has ended or has called what is returned. To be called in
    each process once.
    """
    held = ExitStack()
    descriptor = _open(directory)
    held.callback(os.close, descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # whoever held it before is about to end
    return held.close


def is_run_locked(directory: Path) -> bool:
    """Whether anybody holds the folder."""
    descriptor = _open(directory)
    try:
        return not _taken(descriptor)
    finally:
        os.close(descriptor)


def write_owner_only(path: Path, content: bytes) -> None:
    """A new file that its owner alone can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _open(directory: Path) -> int:
    return os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)


def _taken(descriptor: int) -> bool:
    """Whether the lock could be had."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
