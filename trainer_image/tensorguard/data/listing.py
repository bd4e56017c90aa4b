"""What there is at an address: files, their format and columns, and the fragments that reading is split into.

`read` runs `inspect` in a Ray task, since the driver's machine may not be allowed to read the data; what goes back to
the driver is a `Source` and a list of fragments, made of paths and file sizes alone. A pod that reads for itself
(`own`) takes `tables_at`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.utils import infer_compression

from tensafe_api.resources.training import Storage
from tensorguard.data.columns import check_columns, check_text_columns, check_types
from tensorguard.data.errors import DataError, Unreadable
from tensorguard.data.files import Source, csv_rows, json_object, lines, tsv_row
from tensorguard.storage import filesystem_of, reason_of

FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
}
FRAGMENT_BYTES = 64 << 20
PROBE_BYTES = 1 << 20
"""How far into a jsonl file column names are looked for."""


def files_at(uri: str, storage: Storage | None, format: str | None) -> dict[str, str]:  # noqa: A002
    """The files at a URI by what tells them apart, whatever their names: on a disk the file itself, which may have
    several, elsewhere its address.

    Raises whatever the file system raises.
    """
    protocol, options = filesystem_of(uri, storage)
    files = _files(fsspec.filesystem(protocol, **options), uri, format)
    if protocol not in ("file", "local"):
        return {path: path for path in files}
    found = {path: os.stat(path) for path in files}  # noqa: PTH116
    return {f"{stat.st_dev}/{stat.st_ino}": path for path, stat in found.items()}


def inspect(
    uri: str,
    columns: Mapping[str, str],
    format: str | None,  # noqa: A002
    protocol: str,
    options: Mapping[str, Any],
    where: str,
) -> tuple[Source, list[dict[str, Any]]]:
    """List the files at `uri` and check names and types in the first: (what to read, its fragments). See `read`."""
    try:
        filesystem = fsspec.filesystem(protocol, **options)
        files = _files(filesystem, uri, format)
    except ImportError as error:
        raise Unreadable(f"{where}.uri: reading {uri} needs a package that is not installed ({error})") from None
    except Exception as error:
        raise Unreadable(f"{where}.uri: cannot read {uri}: {reason_of(error) or type(error).__name__}") from None
    if not files:
        raise DataError(f"{where}.uri: there is no data at {uri}: no file, or none but empty ones")
    kinds = {format} if format else {kind for path in files if (kind := _format_of(path))}
    if len(kinds) > 1:
        raise DataError(
            f"{where}.uri: {uri} holds {' and '.join(sorted(kinds))} files; name one kind by a glob (*.csv) or `format`"
        )
    if not kinds:
        raise DataError(f"{where}.format: the name of {uri} does not tell its format; give parquet, jsonl, csv or tsv")

    source = Source(protocol, options, kinds.pop(), tuple(dict.fromkeys(columns.values())), where)
    first = next(iter(files))
    try:
        names = _header(source, filesystem, first)
    except DataError:
        raise
    except Exception as error:
        raise Unreadable(f"{where}.uri: cannot read {first} as {source.format} ({type(error).__name__})") from None
    if isinstance(names, pa.Schema):
        check_columns(source.columns, names.names, first, f"{where}.columns")
        check_types(columns, {name: names.field(name).type for name in source.columns}, f"{where}.columns")
    elif source.positional:
        check_columns(source.columns, names, first, f"{where}.columns")
    else:
        check_text_columns(source.columns, names, first, source.format, f"{where}.columns")
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
    protocol, options = filesystem_of(uri, storage)
    source, fragments = inspect(uri, columns, format, protocol, options, where)
    for fragment in fragments:
        yield from source.tables(**fragment)


def _files(filesystem: Any, uri: str, format: str | None) -> dict[str, int]:  # noqa: A002
    """The files at a URI that hold something, by path in a fixed order, with their sizes in bytes."""
    path = filesystem._strip_protocol(uri)
    if any(sign in path for sign in "*?[") and not filesystem.exists(path):
        found = filesystem.glob(path, detail=True)
    elif filesystem.isdir(path):
        found = filesystem.find(path, detail=True)
        inside = {name: name.removeprefix(path).lstrip("/").split("/") for name in found}
        found = {n: i for n, i in found.items() if not any(step.startswith((".", "_")) for step in inside[n])}
        found = {n: i for n, i in found.items() if format or _format_of(n)}
    else:
        info = filesystem.info(path)
        found = {info["name"]: info}
    return {
        name: found[name]["size"] for name in sorted(found) if found[name]["type"] == "file" and found[name]["size"]
    }


def _fragments(source: Source, path: str, size: int) -> Iterable[dict[str, Any]]:
    splits = source.format != "csv" and not infer_compression(path)
    parts = max(1, round(size / FRAGMENT_BYTES)) if splits else 1
    return ({"path": path, "part": part, "parts": parts} for part in range(parts))


def _header(source: Source, filesystem: Any, path: str) -> list[str] | pa.Schema:
    """The names of a file's columns (parquet: its schema); without a header row, the positions of its first row.

    jsonl has no schema: its names are those that occur in its first mebibyte.
    """
    if source.format == "parquet":
        with filesystem.open(path, "rb") as handle, pq.ParquetFile(handle) as file:
            return file.schema_arrow
    with filesystem.open(path, "rb", compression=infer_compression(path)) as handle:
        if source.format != "jsonl":
            first = next(csv_rows(handle), []) if source.format == "csv" else tsv_row(handle.readline())
            return [str(i) for i in range(len(first))] if source.positional else first
        probe = list(lines(handle, 0, PROBE_BYTES))
        names = dict.fromkeys(name for line in probe for name in json_object(line))
        if not names and probe[0].lstrip().startswith(b"["):
            raise DataError(f"{source.where}.uri: {path} holds a JSON array; write one object a line (jsonl)")
        return list(names)


def _format_of(path: str) -> str | None:
    """The format that a file's name tells, compression suffix aside; None where it tells none."""
    name = PurePosixPath(path)
    if infer_compression(path):
        name = name.with_suffix("")
    return FORMATS.get(name.suffix.lower())
