"""Stores the lines of an audit log in one file, on a file system that can append.

A line is on the disk (fsync) before `append` returns. Each append holds the lock of the file (flock, which the system
releases when the process ends), so two processes never interleave. A last line that a kill cut is completed or removed
under the lock, since nothing has relied on it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Protocol

from tensafe_api.reasons import Reason
from tensorguard.storage import sync_directory


class AuditLogUnwritable(Exception):
    """The audit log cannot be written or read. `str()` is a sentence."""

    reason: ClassVar[Reason] = Reason.CHECKPOINT_UNWRITABLE


class Lines(Protocol):
    """The lines of one log. Implementations remember which lines they have returned."""

    name: str
    """The place of the log, for messages."""

    def read_new(self) -> list[bytes]:
        """The complete lines that were added since the last call, without their newlines.

        Raises:
            AuditLogUnwritable: the lines cannot be read.
        """
        ...

    def append(self, number: int, line: bytes) -> bool:
        """Store a line durably, as number `number` from 1, and count it as returned.

        Returns False, and stores nothing, where the log has lines that `read_new` has not returned.

        Raises:
            AuditLogUnwritable: the line cannot be stored.
        """
        ...


class LineFile:
    """The lines of the file at `path`, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._count, self._offset = 0, 0

    def read_new(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise AuditLogUnwritable(f"{self._path} cannot be read: {error.strerror}; fix its permissions") from error
        *lines, _ = content.split(b"\n")
        self._count += len(lines)
        self._offset += sum(len(line) + 1 for line in lines)
        return lines

    def torn_line(self) -> bytes:
        """What follows the last newline. It is empty, unless a process was killed while it wrote."""
        return self._path.read_bytes().rpartition(b"\n")[2] if self._path.exists() else b""

    def append(self, number: int, line: bytes) -> bool:
        try:
            with self._locked() as descriptor:
                if self._has_new_lines(descriptor) or number != self._count + 1:
                    return False
                self._write(descriptor, line + b"\n")
        except OSError as error:
            raise AuditLogUnwritable(
                f"{self._path} cannot be written: {error.strerror}; free space on the disk, and resume"
            ) from error
        self._count, self._offset = number, self._offset + len(line) + 1
        return True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        created = not self._path.exists()
        if created:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if created:
                sync_directory(self._path.parent)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _has_new_lines(self, descriptor: int) -> bool:
        """Whether there is a complete line that was not read. Completes or removes an incomplete one."""
        size = os.fstat(descriptor).st_size
        if size < self._offset:
            raise OSError(0, "lines were removed while it was in use")
        rest = os.pread(descriptor, size - self._offset, self._offset)
        if b"\n" in rest:
            return True
        if not rest:
            return False
        if _is_complete(rest):  # only the newline is missing
            self._write(descriptor, b"\n")
            return True
        os.ftruncate(descriptor, self._offset)
        return False

    def _write(self, descriptor: int, content: bytes) -> None:
        before = os.fstat(descriptor).st_size
        try:
            if os.write(descriptor, content) != len(content):
                raise OSError(0, "only a part of the line was written")
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, before)
            raise


def _is_complete(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
