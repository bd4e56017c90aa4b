"""The files of a data set as Ray tasks receive them: `Source` reads fragments of files, whatever their format.

`listing` finds the files once and ships the resulting `Source` to Ray tasks. Each task calls `Source.tables` on the
fragments that it receives. A fragment is a share of one file: row groups of a parquet file, a byte range of a jsonl or
tsv file, or a whole csv or compressed file, which cannot be split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa

from tensorguard.data.compression import MAGIC_BYTES, CorruptArchive, compression_in, compression_of, decompressed
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.formats.base import DataFile, DataFormat


@dataclass(frozen=True)
class Source:
    """What every reading task needs of a data set; small, can be pickled, and holds no record.

    Attributes:
        protocol, options: the fsspec file system.
        format: the format of all files.
        columns: the columns to read (names, or positions as decimal integers).
        where: the manifest's field that errors name, such as "spec.dataset".
        user: the column of the user id; None if a unit is one record.
    """

    protocol: str
    options: Mapping[str, Any]
    format: DataFormat
    columns: tuple[str, ...]
    where: str = "spec.dataset"
    user: str | None = None

    def file(self, path: str, size: int | None = None) -> DataFile:
        """One file of the data set."""
        return DataFile(fsspec.filesystem(self.protocol, **self.options), path, self.where, self.user, size)

    def tables(self, path: str, part: int, parts: int, size: int | None = None) -> Iterator[pa.Table]:
        """The rows of share `part` of `parts` of one file, as tables of at most a few thousand rows.

        Args:
            size: of the file in bytes, when it was listed: if it grows, all shares are still those of the same bytes.

        Raises DataError, with nothing of the content, where the file cannot be read.
        """
        rows = 0
        try:
            for table in self.format.rows(self.file(path, size), self.columns, part, parts):
                rows += table.num_rows
                yield table
            if part == 0 and rows == 0:
                self.check_content(path)
        except Exception as error:
            raise unreadable(self, path, error) if rows else self.fault(path, error) from None

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
