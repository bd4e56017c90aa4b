"""What there is at an address: files, their format and columns, and the fragments that reading is split into.

`addresses` finds the files. This module finds their format, and checks the columns of the first one.

`read` runs `inspect` in a Ray task, because the driver's machine may not be allowed to read the data. A `Source` and a
list of fragments return to the driver: paths and file sizes alone. A pod reads by itself, and calls `tables_at`
(`pod_shard`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import fsspec
import pyarrow as pa

from tensafe_api.resources.data import FILE_FORMATS
from tensafe_api.resources.training import Storage
from tensorguard.data.addresses import NO_ENDING, identities, list_files, named_files
from tensorguard.data.compression import compression_of, unsupported_archive
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.files import Source
from tensorguard.data.formats import format_named, format_of
from tensorguard.data.raw_table import Wanted
from tensorguard.storage import explain_storage_error, filesystem_options

FRAGMENT_BYTES = 64 << 20
"""Target size of a fragment of a file that can be split."""


def files_at(uri: str, storage: Storage | None, format: str | None) -> dict[str, str]:  # noqa: A002
    """The files at a URI, by everything that identifies them: a file may be in the result several times.

    Raises whatever the file system raises.
    """
    protocol, options = filesystem_options(uri, storage)
    filesystem = fsspec.filesystem(protocol, **options)
    found = named_files(filesystem, uri, format).files
    return {f"{protocol}:{same}": path for path in found for same in identities(filesystem, path)}


def inspect(
    uri: str,
    wanted: Wanted,
    format: str | None,  # noqa: A002
    protocol: str,
    options: Mapping[str, Any],
) -> tuple[Source, list[dict[str, Any]]]:
    """List the files at `uri`, and check the columns of the first: (the source, its fragments). See `read`."""
    where = wanted.where
    try:
        filesystem = fsspec.filesystem(protocol, **options)
        listing = list_files(filesystem, uri, format)
    except DataError as error:
        raise type(error)(f"{where}.uri: {error}") from None
    except ImportError as error:
        raise UnreadableDataError(
            f"{where}.uri: cannot read {uri}: a package is not installed ({error}); install it"
        ) from None
    except Exception as error:
        raise UnreadableDataError(
            f"{where}.uri: cannot read {uri}: {explain_storage_error(error) or type(error).__name__}"
        ) from None
    files = listing.files
    if not files:
        found = f"left out: {listing.left_out_text()}" if listing.left_out else "no file"
        fix = "set `format`, or rename the files" if NO_ENDING in listing.left_out.values() else "check the address"
        raise DataError(f"{where}.uri: there is no data at {uri} ({found}): {fix}")
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

    name = kinds.pop()
    source = Source(protocol, options, format_named(name), wanted, listing.base, listing.sentence(uri, name))
    _check_compression(source, files)
    first = next(iter(files))
    try:
        source.check_columns(first)
    except Exception as error:
        raise source.fault(first, error) from None
    return source, [fragment for path, size in files.items() for fragment in _fragments(source, path, size)]


def files_of(
    uri: str,
    wanted: Wanted,
    *,
    format: str | None,  # noqa: A002
    storage: Storage | None,
    report: Callable[[str], None] | None = None,
) -> tuple[Source, list[dict[str, Any]]]:
    """As `inspect`, for a URI. `report` is called with a sentence: how many files are read, and which are left out."""
    protocol, options = filesystem_options(uri, storage)
    source, fragments = inspect(uri, wanted, format, protocol, options)
    if report is not None:
        report(source.summary)
    return source, fragments


def tables_at(
    uri: str,
    wanted: Wanted,
    *,
    format: str | None,  # noqa: A002
    storage: Storage | None,
    report: Callable[[str], None] | None = None,
) -> Iterator[pa.Table]:
    """The raw tables of the files at `uri`, read in this process. As `read`, without Ray."""
    source, fragments = files_of(uri, wanted, format=format, storage=storage, report=report)
    for fragment in fragments:
        yield from source.tables(**fragment)


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
