"""What a data format is: the protocol that each module of this package implements.

A format reports which columns a file has, and yields the rows of one share of a file as Arrow tables. It does not list
files, check types, tokenise, or compute the keys of records: `listing`, `columns`, `tokenise` and `keys` do this for
all formats alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from tensorguard.data.columns import FileColumns
from tensorguard.data.compression import CorruptArchive, compression_of, decompressed
from tensorguard.data.errors import UnreadableDataError


class DataFormat(Protocol):
    """One file format. Instances are small, and can be pickled: Ray tasks receive them.

    Attributes:
        name: the value of `spec.dataset.format`.
        endings: of file names, in lower case, with the dot, one suffix each: only a name's last suffix is compared.
        splittable: whether several tasks can share one uncompressed file. If False, `part` is 0 and `parts` is 1.
        compressible: whether a compression ending, such as `.gz`, may follow the format's own.
    """

    @property
    def name(self) -> str: ...

    @property
    def endings(self) -> tuple[str, ...]: ...

    @property
    def splittable(self) -> bool: ...

    @property
    def compressible(self) -> bool: ...

    def columns(self, file: DataFile, wanted: Sequence[str]) -> FileColumns:
        """The columns of `file`, found without reading all of it.

        Args:
            file: the file.
            wanted: the columns that the job names.

        Raises:
            DataError: no file of this format could have the wanted columns.
        """
        ...

    def rows(self, file: DataFile, wanted: Sequence[str], part: int, parts: int) -> Iterator[pa.Table]:
        """The rows of share `part` of `parts`, as tables of at most a few thousand rows with the columns `wanted`.

        Over all parts each row appears once. A row that cannot be parsed is dropped, so that no record can stop a job.
        So is a row that lacks the column `file.user`: it is not known whose it is, and as a unit by itself it could
        split a user. A null is a value: it declares that the record has no user.
        Raises DataError where the file lacks a column. Any other exception is reported by its class name alone, since
        its message may quote a record.
        """
        ...


@dataclass(frozen=True)
class DataFile:
    """One file of a data set.

    Attributes:
        filesystem: the fsspec file system.
        path: in that file system.
        where: the manifest's field that errors name, such as "spec.dataset".
        user: the column of the user id; None if a unit is one record.
        size: in bytes, when the file was listed; None: as it is now.
    """

    filesystem: Any
    path: str
    where: str
    user: str | None = None
    size: int | None = None

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The file's content as bytes, decompressed where its name has a compression ending.

        A decompressed stream cannot seek. Raises UnreadableDataError for a truncated or corrupt archive.
        """
        compression = compression_of(self.path)
        with self.filesystem.open(self.path, "rb") as handle:
            if compression is None:
                yield handle
                return
            try:
                with decompressed(handle, compression) as stream:
                    yield stream
            except CorruptArchive as fault:
                raise UnreadableDataError(f"{self.where}.uri: cannot read {self.path}: {fault}") from None

    def byte_range(self, part: int, parts: int) -> tuple[int, int | None]:
        """The bytes [start, end) of share `part` of `parts`; (0, None) for one share, which is the whole file."""
        if parts == 1:
            return 0, None
        size = self.filesystem.size(self.path) if self.size is None else self.size
        return size * part // parts, size * (part + 1) // parts
