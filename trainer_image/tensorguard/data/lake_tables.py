"""Recognises the folders of Delta, Hudi and Iceberg tables, whose parquet files must not be read as they are.

Such a table deletes or changes a row in its log: the files in which it was still hold it. A job that read them would
train on records of erased persons, and on several versions of others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

from fsspec.implementations.local import LocalFileSystem

_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi", "metadata": "Iceberg"}
"""The folder in a table's folder that makes it a table, and the kind of the table."""
_ICEBERG = re.compile(r"(?:.*/)?metadata/(?:v\d+|\d+-[0-9a-f-]+)(?:\.gz)?\.metadata\.json(?:\.gz)?")
"""An Iceberg table's file of metadata. Other folders may be called `metadata`."""


def is_metadata(path: str) -> bool:
    """Whether a path is that of an Iceberg table's file of metadata, which is JSON and no record."""
    return _ICEBERG.fullmatch(path) is not None


def table_of(
    filesystem: Any, paths: Collection[str], base: str, listed: Collection[str] | None
) -> tuple[str, str] | None:
    """The first table whose folder holds one of the files: (its folder, its kind).

    In a remote store, the folders at and above `base` cost three requests each, and those below it none if `listed` has
    their names, else one each, which the store's client has often cached.

    Args:
        filesystem: of fsspec.
        paths: of files.
        base: the folder in which they are.
        listed: all names that are known below `base`; None: only `paths` are.
    """
    if isinstance(filesystem, LocalFileSystem):
        real = {os.path.realpath(path) for path in paths}
        folders = sorted({folder for path in {*paths, *real} for folder in _parents(path)})
    else:
        below = sorted({folder for path in paths for folder in _parents(path) if folder.startswith(f"{base}/")})
        holding = _holding_a_log(filesystem, below, listed)
        folders = [*([base] if base else []), *_parents(base), *holding]
    return next(((folder, kind) for folder in folders if (kind := _kind(filesystem, folder))), None)


def _parents(path: str) -> Iterator[str]:
    """The folders above a path. None of a URL: a web server has no folders."""
    if "://" in path:
        return
    while path := path.rpartition("/")[0]:
        yield path


def _holding_a_log(filesystem: Any, folders: Iterable[str], listed: Collection[str] | None) -> Iterator[str]:
    """Those of the folders that hold a folder named as a table's log."""
    known = None if listed is None else {*listed, *(folder for path in listed for folder in _parents(path))}
    for folder in folders:
        logs = {f"{folder}/{name}" for name in _LOGS}
        if known is not None:
            found = known
        elif "=" in folder.rpartition("/")[2]:  # a partition
            continue
        else:
            found = {name.rstrip("/") for name in _names_in(filesystem, folder)}
        if logs & found:
            yield folder


def _kind(filesystem: Any, folder: str) -> str | None:
    """The kind of the table in a folder; None if it is none, or cannot be listed."""
    for name, kind in _LOGS.items():
        log = f"{folder}/{name}"
        with suppress(Exception):  # no right to list a folder above the data
            if filesystem.isdir(log) and (kind != "Iceberg" or any(map(is_metadata, _names_in(filesystem, log)))):
                return kind
    return None


def _names_in(filesystem: Any, folder: str) -> list[str]:
    with suppress(Exception):
        return list(filesystem.ls(folder, detail=False))
    return []
