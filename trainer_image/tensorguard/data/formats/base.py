"""What a data format is: the protocol that each module of this package implements.

A format reports which columns a file has, and yields the rows of one share of a file, with values of the types that
the file gives them. It does not list files, convert values, tokenise, or compute the keys of records: `listing`,
`values`, `tokenise` and `keys` do this for all formats alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from tensorguard.data.columns import FileColumns
from tensorguard.data.compression import CorruptArchive, compression_of, decompressed
from tensorguard.data.errors import UnreadableDataError
from tensorguard.data.raw_table import Rows


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

    def rows(self, file: DataFile, wanted: Sequence[str], part: int, parts: int) -> Iterator[Rows]:
        """The rows of share `part` of `parts`, at most a few thousand at a time, with the columns `wanted`.

        Over all parts each row appears once, and with every value: nothing is converted or left out. A value that a
        record does not have is None.
        Raises DataError, with the line and without content, for a row that cannot be read as one record, and where the
        file lacks a column. Any other exception is reported by its class name alone, since its message may quote a
        record.
        """
        ...

    def place(self, file: DataFile, at: int) -> str:
        """Where a row is, in words, from its `Rows.at`: "line 7"."""
        ...


@dataclass(frozen=True)
class DataFile:
    """One file of a data set.

    Attributes:
        filesystem: the fsspec file system.
        path: in that file system.
        where: the manifest's field that errors name, such as "spec.dataset".
        nulls: the texts that mean no value in a file without types.
        size: in bytes, when the file was listed; None: as it is now.
    """

    filesystem: Any
    path: str
    where: str
    nulls: frozenset[str] = frozenset()
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

    def fault(self, place: str, what: str) -> UnreadableDataError:
        """The error for a row that cannot be read, or a fault of the whole file where `place` is empty."""
        return UnreadableDataError(f"{self.where}.uri: {self.path}{', ' if place else ''}{place}: {what}")

    def byte_range(self, part: int, parts: int) -> tuple[int, int | None]:
        """The bytes [start, end) of share `part` of `parts`; (0, None) for one share, which is the whole file."""
        if parts == 1:
            return 0, None
        size = self.filesystem.size(self.path) if self.size is None else self.size
        return size * part // parts, size * (part + 1) // parts
