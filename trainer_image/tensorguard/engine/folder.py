"""The run's folder: what lies in it under which name, and that one run at a time is at work there.

Two drivers in one folder would remove each other's Ray session and shards. The lock is the operating system's (flock),
so it dies with its process and needs no clearing away after a kill; it is a driver's, and apart from the ledger's own,
which belongs to the workers.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".run.lock"
WORK = ".work"
"""Shards, and what Ray Train keeps; it goes when the run ends."""
RAY_TRAIN = "ray-train"
"""In it: Ray Train's own."""


class FolderUnusable(Exception):
    """The folder cannot be written to, or another run is at work in it. `str()` is a sentence."""


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Hold the folder, which is made where it does not exist. Raises FolderUnusable."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise FolderUnusable(
            f"{directory} cannot be written to: {error.strerror}; name another --output-dir, or mend its permissions"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderUnusable(
                f"another run is at work in {directory}; wait for its end, or name another --output-dir"
            ) from None
        yield
    finally:
        os.close(descriptor)


def write_private(path: Path, content: bytes) -> None:
    """A new file that its owner alone can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
