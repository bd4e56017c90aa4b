"""What there is to know of the files of a data set before their records: columns, types and encoding.

In: a `Source`, and for each file how many records it holds and the sum of their keys. Out: a `File` for each. Names
that may be the content of records are counted and not shown: a line of jsonl names its own columns.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from contextlib import suppress

from tensorguard.data.columns import FileColumns, type_name
from tensorguard.data.errors import DataError
from tensorguard.data.files import Source
from tensorguard.inspection.inspection import Column, File

_NO_COLUMN = ""
"""A name that no record has: a format that looks for it reads all names at the beginning of a file."""


def describe_files(
    source: Source, sizes: Mapping[str, int], counted: Mapping[str, tuple[int, int]], show_records: bool
) -> tuple[File, ...]:
    """The files, in their order.

    Args:
        source: of the files.
        sizes: in bytes, by path.
        counted: by path, the number of records and the sum of their keys, of the files that were read.
        show_records: whether names that may be content are shown.
    """
    first: dict[tuple[int, int], str] = {}
    found = []
    for path, size in sizes.items():
        records, total = counted.get(path, (0, 0))
        same = first.setdefault((records, total), path) if records else path
        columns, others = _columns(source, path, show_records)
        found.append(
            File(
                path=path,
                format=source.format.name,
                bytes=size,
                records=records,
                encoding=_encoding(source, path),
                columns=columns,
                other_columns=others,
                same_records_as=None if same == path else same,
            )
        )
    return tuple(found)


def _columns(source: Source, path: str, show_records: bool) -> tuple[tuple[Column, ...], int]:
    """The columns that may be shown, and how many more names there are. None where the file cannot be read."""
    file, wanted = source.file(path), source.wanted
    folders: Mapping[str, str | None] = {}
    found = FileColumns(())
    with suppress(Exception):  # reading the records reports it
        folders = source.folder_columns(path)
        found = source.format.columns(file, [name for name in wanted.names if name not in folders])
        if not found.fixed:
            found = source.format.columns(file, [*wanted.names, _NO_COLUMN])
    roles = {name: role for role, name in wanted.columns.items()}
    names = [name for name in wanted.names if found.find(name) or name in folders]
    used = {place[0] for name in names if (place := found.find(name))}
    others = [name for name in found.names if name not in used]
    columns = [Column(name, _type(found, name), roles[name]) for name in names]
    in_schema = found.types is not None or (found.fixed and len(names) == len(wanted.names))
    if not (in_schema or show_records):  # the first row of a file without a header is a record
        return tuple(columns), len(others)
    return tuple(columns + [Column(name, _type(found, name), None) for name in others]), 0


def _type(found: FileColumns, name: str) -> str | None:
    kind = found.type_of(name)
    return None if kind is None else type_name(kind)


def _encoding(source: Source, path: str) -> str | None:
    """The encoding of a text file; None for another, or one that cannot be read."""
    if not source.format.compressible:
        return None
    with suppress(DataError, OSError), source.file(path).open() as handle:
        return "UTF-8 with a byte order mark" if handle.read(3) == codecs.BOM_UTF8 else "UTF-8"
    return None
