"""The files of a data set as Ray tasks receive them: `Source` reads fragments of files, whatever their format.

`listing` finds the files once and ships the resulting `Source` to Ray tasks. Each task calls `Source.tables` on the
fragments that it receives. A fragment is a share of one file: row groups of a parquet file, a byte range of a jsonl or
tsv file, or a whole csv or compressed file, which cannot be split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import fsspec
import pyarrow as pa

from tensafe_api.tasks import OPTIONAL_COLUMNS
from tensorguard.data.columns import check_types
from tensorguard.data.compression import MAGIC_BYTES, CorruptArchive, compression_in, compression_of, decompressed
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.formats.base import DataFile, DataFormat
from tensorguard.data.partitions import partition_values
from tensorguard.data.raw_table import Rows, Wanted, python_values, raw_table


@dataclass(frozen=True)
class Source:
    """What every reading task needs of a data set; small, can be pickled, and holds no record.

    Attributes:
        protocol, options: the fsspec file system.
        format: the format of all files.
        wanted: what the job reads of each record.
        base: the folder below which the names of folders may give columns, as in `year=2024`.
        summary: a sentence for users: how many files are read, and which ones are left out.
    """

    protocol: str
    options: Mapping[str, Any]
    format: DataFormat
    wanted: Wanted
    base: str = ""
    summary: str = ""

    @property
    def where(self) -> str:
        """The manifest's field that errors name, such as "spec.dataset"."""
        return self.wanted.where

    def file(self, path: str, size: int | None = None) -> DataFile:
        """One file of the data set."""
        filesystem = fsspec.filesystem(self.protocol, **self.options)
        return DataFile(filesystem, path, self.where, self.wanted.nulls, size)

    def folder_columns(self, path: str) -> dict[str, str | None]:
        """The values that all records of a file have in columns of the job, by the names of its folders.

        A column that the file itself has takes precedence. Raises DataError if two folders name one column, or for a
        name that is not UTF-8.
        """
        try:
            path.encode()
        except UnicodeEncodeError:
            raise DataError(f"{self.where}.uri: the name {path!a} is not UTF-8: rename the file") from None
        try:
            found = partition_values(path, self.base)
        except ValueError as error:
            raise DataError(f"{self.where}.uri: {error}") from None
        return {name: value for name, value in found.items() if name in self.wanted.names}

    def tables(self, path: str, part: int, parts: int, size: int | None = None) -> Iterator[pa.Table]:
        """The rows of share `part` of `parts` of one file, as raw tables of at most a few thousand rows.

        Args:
            size: of the file in bytes, when it was listed: if it grows, all shares are still those of the same bytes.

        Raises DataError, with nothing of the content, where the file cannot be read.
        """
        place = partial(self.format.place, self.file(path, size))
        for rows in self.rows(path, part, parts, size):
            yield raw_table(rows, self.wanted, file=path, place=place)

    def rows(self, path: str, part: int, parts: int, size: int | None = None) -> Iterator[Rows]:
        """As `tables`, with the values that the file holds, and those that the names of its folders give."""
        file, count = self.file(path, size), 0
        try:
            folders, fixed = self.check_columns(path)
            names = [name for name in self.wanted.names if not (fixed and name in folders)]
            for rows in self.format.rows(file, names, part, parts):
                count += len(rows.at)
                none = [None] * len(rows.at)
                given = {
                    name: [value if own is None else own for own in python_values(rows.columns.get(name, none))]
                    for name, value in folders.items()
                }
                yield rows._replace(columns={**rows.columns, **given})
            if part == 0 and count == 0:
                self.check_content(path)
        except Exception as error:
            raise unreadable(self, path, error) if count else self.fault(path, error) from None

    def check_columns(self, path: str) -> tuple[dict[str, str | None], bool]:
        """Check the columns of a file, and return those that the names of its folders give where the file has none.

        The second result is whether all records have the same columns. If not, a record's own value comes first.

        Raises DataError where the file lacks a column of the job, or has a type that does not fit its role.
        """
        folders = self.folder_columns(path)
        found = self.format.columns(self.file(path), [name for name in self.wanted.names if name not in folders])
        folders = {name: value for name, value in folders.items() if not (found.fixed and found.find(name))}
        columns = {role: name for role, name in self.wanted.columns.items() if name not in folders}
        needed = [name for role, name in columns.items() if found.fixed or role not in OPTIONAL_COLUMNS]
        found.check(dict.fromkeys(needed), path, f"{self.where}.columns")
        if found.types is not None:
            types = {name: found.type_of(name) for name in columns.values()}
            check_types(columns, types, f"{self.where}.columns", path)
        return folders, found.fixed

    def place(self, path: str, at: int) -> str:
        """Where a record is, in words, from the file and place of a raw table."""
        return f"{path}, {self.format.place(self.file(path), at)}"

    def fault(self, path: str, error: Exception) -> DataError:
        """What to report for a file that failed before any row was found.

        That its content is an archive, if it is: a format finds all kinds of faults in the bytes of an archive. Else
        what `unreadable` says.
        """
        try:
            self.check_content(path)
        except DataError as archive:
            return archive
        except Exception:
            pass
        return unreadable(self, path, error)

    def check_content(self, path: str) -> None:
        """Raise DataError if the content of a file is an archive, which its name does not show.

        Called for a file in which nothing was found. A record that only starts like an archive is not refused.
        """
        with self.file(path).open() as handle:
            archive = compression_in(handle.read(MAGIC_BYTES))
        if archive is None:
            return
        fix = "compress it only once" if compression_of(path) else f"decompress it, or add {archive} to its name"
        with self.file(path).open() as handle, suppress(CorruptArchive), decompressed(handle, archive) as content:
            content.read(1)
            raise UnreadableDataError(
                f"{self.where}.uri: the content of {path} is a {archive} archive, not {self.format.name}: {fix}"
            )


def unreadable(source: Source, path: str, error: Exception) -> DataError:
    """The error for a file that cannot be read: `error` itself if it is a DataError.

    Of any other error it names the kind alone: a message may quote a record.
    """
    if isinstance(error, DataError):
        return error
    return UnreadableDataError(
        f"{source.where}.uri: cannot read {path} as {source.format.name} ({type(error).__name__}): "
        f"check the file, or set {source.where}.format"
    )
