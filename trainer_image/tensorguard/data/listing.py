"""What there is at an address: files, their format and columns, and the fragments that reading is split into.

`read` runs `inspect` in a Ray task, because the driver's machine may not be allowed to read the data. A `Source` and a
list of fragments return to the driver: paths and file sizes alone. A pod reads by itself, and calls `tables_at`
(`pod_shard`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from tensafe_api.resources.data import FILE_FORMATS
from tensafe_api.resources.training import Storage
from tensafe_api.tasks import OPTIONAL_COLUMNS
from tensorguard.data.columns import check_types
from tensorguard.data.compression import compression_of, unsupported_archive
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.files import Source
from tensorguard.data.formats import format_named, format_of
from tensorguard.storage import explain_storage_error, filesystem_options

FRAGMENT_BYTES = 64 << 20
"""Target size of a fragment of a file that can be split."""


def files_at(uri: str, storage: Storage | None, format: str | None) -> dict[str, str]:  # noqa: A002
    """The files at a URI, by everything that identifies them: a file may be in the result several times.

    Raises whatever the file system raises.
    """
    protocol, options = filesystem_options(uri, storage)
    filesystem = fsspec.filesystem(protocol, **options)
    found = _named_files(filesystem, uri, format)
    return {f"{protocol}:{same}": path for path in found for same in _identities(filesystem, path)}


def inspect(
    uri: str,
    columns: Mapping[str, str],
    format: str | None,  # noqa: A002
    protocol: str,
    options: Mapping[str, Any],
    where: str,
) -> tuple[Source, list[dict[str, Any]]]:
    """List the files at `uri`, and check the columns of the first: (the source, its fragments). See `read`."""
    try:
        filesystem = fsspec.filesystem(protocol, **options)
        files = _files(filesystem, uri, format)
    except DataError as error:
        raise DataError(f"{where}.uri: {error}") from None
    except ImportError as error:
        raise UnreadableDataError(
            f"{where}.uri: cannot read {uri}: a package is not installed ({error}); install it"
        ) from None
    except Exception as error:
        raise UnreadableDataError(
            f"{where}.uri: cannot read {uri}: {explain_storage_error(error) or type(error).__name__}"
        ) from None
    if not files:
        raise DataError(f"{where}.uri: there is no data at {uri} (no file, or only empty files): check the address")
    kinds = {format} if format else {known.name for path in files if (known := format_of(path))}
    if len(kinds) > 1:
        raise DataError(
            f"{where}.uri: {uri} holds {' and '.join(sorted(kinds))} files; select one format by a glob (*.csv) or "
            "`format`"
        )
    if not kinds:
        raise DataError(
            f"{where}.format: no format has the ending of {uri}: rename the file, or set format to one of "
            f"{', '.join(FILE_FORMATS)}"
        )

    source = Source(
        protocol, options, format_named(kinds.pop()), tuple(dict.fromkeys(columns.values())), where, columns.get("user")
    )
    _check_compression(source, files)
    first = next(iter(files))
    try:
        found = source.format.columns(source.file(first), source.columns)
        needed = [name for role, name in columns.items() if found.fixed or role not in OPTIONAL_COLUMNS]
        found.check(dict.fromkeys(needed), first, f"{where}.columns")
        if found.types is not None:
            check_types(columns, found.types, f"{where}.columns")
    except Exception as error:
        raise source.fault(first, error) from None
    return source, [fragment for path, size in files.items() for fragment in _fragments(source, path, size)]


def tables_at(
    uri: str,
    columns: Mapping[str, str],
    *,
    format: str | None,  # noqa: A002
    storage: Storage | None,
    where: str = "spec.dataset",
) -> Iterator[pa.Table]:
    """The named columns of the files at `uri`, table by table, read in this process. As `read`, without Ray."""
    protocol, options = filesystem_options(uri, storage)
    source, fragments = inspect(uri, columns, format, protocol, options, where)
    for fragment in fragments:
        yield from source.tables(**fragment)


def _files(filesystem: Any, uri: str, format: str | None) -> dict[str, int]:  # noqa: A002
    """The files at a URI that are not empty, by path in a fixed order, with their sizes in bytes.

    A file with several names is in it once, by its first name that is not that of a compressed file. Otherwise each of
    its records would count twice.
    """
    found = _named_files(filesystem, uri, format)
    same: dict[str, str] = {}

    def representative(identity: str) -> str:
        while (known := same.setdefault(identity, identity)) != identity:
            identity = known
        return identity

    for path in found:
        first, *others = _identities(filesystem, path)
        for other in others:
            same[representative(other)] = representative(first)
    kept: dict[str, str] = {}
    for path in sorted(found, key=lambda path: (compression_of(path) is not None, path)):
        kept.setdefault(representative(_identities(filesystem, path)[0]), path)
    return {path: found[path] for path in sorted(kept.values())}


def _identities(filesystem: Any, path: str) -> list[str]:
    """What identifies a file: its name without the ending of a compression, since `a.jsonl` beside `a.jsonl.gz` is the
    same file; on a disk, where links give a file more names, also its device and inode.
    """
    name = path.removesuffix(PurePosixPath(path).suffix) if compression_of(path) else path
    if not isinstance(filesystem, LocalFileSystem):
        return [name]
    stat = os.stat(path)  # noqa: PTH116
    return [name, f"{stat.st_dev}/{stat.st_ino}"]


def _named_files(filesystem: Any, uri: str, format: str | None) -> dict[str, int]:  # noqa: A002
    """The names at a URI of files that are not empty, in a fixed order, with their sizes in bytes."""
    path = filesystem._strip_protocol(uri)
    if any(character in path for character in "*?[") and not filesystem.exists(path):
        folder, _, name = path.rpartition("/")
        if any(character in folder for character in "*?[") or "**" in name:
            fixed = re.split(r"[*?\[]", path)[0].rpartition("/")[0]
            _refuse_linked_folders(filesystem, fixed or "/")
        found = filesystem.glob(path, detail=True)
    elif filesystem.isdir(path):
        _refuse_linked_folders(filesystem, path)
        found = filesystem.find(path, detail=True)
        inside = {name: name.removeprefix(path).lstrip("/").split("/") for name in found}
        found = {n: i for n, i in found.items() if not any(step.startswith((".", "_")) for step in inside[n])}
        found = {n: i for n, i in found.items() if format or format_of(n)}
    else:
        info = filesystem.info(path)
        found = {info["name"]: info}
    return {name: found[name]["size"] for name in sorted(found) if found[name]["size"] and _is_file(found[name])}


def _raise(error: OSError) -> None:
    raise error


def _refuse_linked_folders(filesystem: Any, path: str) -> None:
    """Refuse a folder with a link to a folder: fsspec does not follow it, and the job would read a part of the data."""
    if not isinstance(filesystem, LocalFileSystem):
        return
    for folder, names, _ in os.walk(path, onerror=_raise):
        names[:] = [name for name in names if not name.startswith((".", "_"))]
        for name in names:
            if os.path.islink(link := os.path.join(folder, name)):  # noqa: PTH114, PTH118
                raise DataError(f"{link} is a link to a folder, which is not followed: copy or move the folder itself")


def _is_file(info: Mapping[str, Any]) -> bool:
    """Whether an entry of a listing is a file, or a link to one."""
    return info["type"] == "file" or (bool(info.get("islink")) and os.path.isfile(info["name"]))  # noqa: PTH113


def _check_compression(source: Source, files: Iterable[str]) -> None:
    """Refuse archives that are not one compressed text file."""
    for path in files:
        if (archive := unsupported_archive(path)) is not None:
            raise DataError(
                f"{source.where}.uri: {path} is a {archive} archive, which cannot be read: decompress it, or compress "
                "each file with gzip or zstd"
            )
        if compression_of(path) and not source.format.compressible:
            raise DataError(
                f"{source.where}.uri: {path} is a compressed {source.format.name} file, and {source.format.name} "
                "compresses inside the file: decompress it"
            )


def _fragments(source: Source, path: str, size: int) -> Iterable[dict[str, Any]]:
    splits = source.format.splittable and compression_of(path) is None
    parts = max(1, round(size / FRAGMENT_BYTES)) if splits else 1
    return ({"path": path, "part": part, "parts": parts, "size": size} for part in range(parts))
