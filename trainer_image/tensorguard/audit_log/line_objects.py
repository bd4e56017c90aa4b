"""Stores the lines of an audit log in an object store, which cannot append: one object for each line.

The name of an object is the number of its line, so `cat *.json` writes the log as one file. An object is created only
if it does not exist, so two processes never overwrite each other's lines. A charge covers about ten seconds of steps,
so there are few objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fsspec

from tensorguard.audit_log.line_files import AuditLogUnwritable
from tensorguard.storage import RetryingFileSystem, explain_storage_error

_SUFFIX = ".json"


class LineObjects:
    """The lines below the folder at `uri`, which may not exist yet."""

    def __init__(self, uri: str, options: Mapping[str, Any] | None = None) -> None:
        """Refer to a folder, without creating it.

        Args:
            uri: any fsspec URI.
            options: of fsspec, such as an S3 endpoint.
        """
        self.name = uri
        fs, root = fsspec.url_to_fs(uri, **(options or {}))
        self._fs, self._root = RetryingFileSystem(fs), root.rstrip("/")
        self._count = 0

    def read_new(self) -> list[bytes]:
        try:
            self._fs.invalidate_cache()
            listed = {str(path) for path in self._fs.ls(self._root, detail=False)}
        except FileNotFoundError:
            return []
        except Exception as error:  # each file system has its own error classes
            raise AuditLogUnwritable(f"{self.name} cannot be read: {_describe(error)}") from error
        paths = []
        while any(path.endswith(self._path(self._count + 1)) for path in listed):
            self._count += 1
            paths.append(self._path(self._count))
        try:
            found = self._fs.cat(paths, on_error="raise") if paths else {}
        except Exception as error:
            raise AuditLogUnwritable(f"{self.name} cannot be read: {_describe(error)}") from error
        by_name = {str(path).rpartition("/")[2]: bytes(content) for path, content in found.items()}
        return [by_name[path.rpartition("/")[2]].removesuffix(b"\n") for path in paths]

    def names(self) -> list[str]:
        """The names of all objects in the folder."""
        self._fs.invalidate_cache()
        return sorted(str(path).rpartition("/")[2] for path in self._fs.ls(self._root, detail=False))

    def append(self, number: int, line: bytes) -> bool:
        if number != self._count + 1:
            return False
        path, content = self._path(number), line + b"\n"
        try:
            self._fs.pipe_file(path, content, mode="create")
        except FileExistsError:
            if bytes(self._fs.cat_file(path)) != content:  # otherwise an earlier try stored it, and its answer was lost
                return False
        except Exception as error:
            raise AuditLogUnwritable(
                f"{self.name} cannot be written: {_describe(error)}; fix the cause, and resume"
            ) from error
        self._count = number
        return True

    def _path(self, number: int) -> str:
        return f"{self._root}/{number:08d}{_SUFFIX}"


def _describe(error: Exception) -> str:
    return explain_storage_error(error) or type(error).__name__
