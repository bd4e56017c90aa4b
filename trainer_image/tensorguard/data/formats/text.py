"""What the text formats share: lines, groups of rows, and `LineFormat` for formats in which one record is one line.

Why not the readers of Ray Data or Arrow: they infer a column's type from the first records, then fail on the first
record that disagrees, and quote it. Here each value keeps the type that its own record gives it.
"""

from __future__ import annotations

import codecs
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, ClassVar, TypeVar

from tensorguard.data.columns import FileColumns, paths_in, value_in
from tensorguard.data.compression import BUFFER_BYTES
from tensorguard.data.formats.base import DataFile
from tensorguard.data.raw_table import Rows

T = TypeVar("T")
TABLE_ROWS = 4096
TABLE_BYTES = 16 << 20
PROBE_BYTES, PROBE_LINES = 1 << 20, 100
"""How much of a file `beginning` reads: at least both. One record cannot hide the others."""
MANY_LINES = 10
"""So many records that are not UTF-8 show that a file has another encoding. Of fewer, each is reported by itself."""
MAX_LINE_BYTES = 32 << 20
"""The limit of a line, so that one record cannot take the memory of a worker."""


class LineFormat(ABC):
    """A format in which one record is one line, and each record names its own columns.

    Subclasses define name, endings and `parse`.
    """

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    splittable: ClassVar[bool] = True
    compressible: ClassVar[bool] = True

    @abstractmethod
    def parse(self, line: bytes) -> Mapping[str, Any]:
        """One line's record as column name to value. The line keeps its newline.

        Raises whatever shows that the line is not exactly one record.
        """

    def why(self, line: bytes) -> str:
        """Why `parse` raises for a line, and the fix, without content."""
        return f"it is not one {self.name} record: correct the line, or set the format of the file"

    def columns(self, file: DataFile, wanted: Sequence[str]) -> FileColumns:
        """The names that occur at the beginning of the file, and those of `wanted` that are paths to a value there."""
        names: dict[str, None] = {}
        check_encoding(file)
        with file.open() as handle:
            for at, line in beginning(lines(handle, 0, None), lambda each: len(each[1])):
                if line.strip():
                    record = self._record(line, at, file)
                    names.update(dict.fromkeys([*record, *paths_in(record, wanted)]))
                if names.keys() >= set(wanted):
                    break
        advice = "write the name as the records spell it"
        return FileColumns(list(names), advice=advice, fixed=False, objects=False)

    def rows(self, file: DataFile, wanted: Sequence[str], part: int, parts: int) -> Iterator[Rows]:
        """The records of the lines that start in the share's byte range. Blank lines are no records."""
        with file.open() as handle:
            found = lines(handle, *file.byte_range(part, parts))
            yield from grouped(self._rows(found, wanted, file), wanted)

    def place(self, file: DataFile, at: int) -> str:
        """The line that begins at byte `at`."""
        return line_at(file, at)

    def _rows(self, found: Iterable[tuple[int, bytes]], wanted: Sequence[str], file: DataFile) -> Iterator[_Row]:
        for at, line in found:
            if line.strip():
                record = self._record(line, at, file)
                yield at, len(line), [value_in(record, name) for name in wanted]

    def _record(self, line: bytes, at: int, file: DataFile) -> Mapping[str, Any]:
        if len(line) >= MAX_LINE_BYTES:
            raise file.fault(self.place(file, at), "it has 32 MiB or more: divide the record, or remove it")
        try:
            return self.parse(line)
        except MemoryError:
            raise
        except Exception:  # whatever a parser raises; its message may quote the line
            raise file.fault(self.place(file, at), self.why(line)) from None


_Row = tuple[int, int, Sequence[Any]]
"""The place of a row, its size in bytes or characters, and its values."""


def grouped(rows: Iterable[_Row], names: Sequence[str]) -> Iterator[Rows]:
    """Rows in groups of at most TABLE_ROWS, and of about TABLE_BYTES."""
    held: list[Sequence[Any]] = []
    places: list[int] = []
    size = 0
    for at, length, row in rows:
        held.append(row)
        places.append(at)
        size += length
        if len(held) >= TABLE_ROWS or size >= TABLE_BYTES:
            yield Rows(dict(zip(names, zip(*held))), places)
            held, places, size = [], [], 0
    if held:
        yield Rows(dict(zip(names, zip(*held))), places)


def line_at(file: DataFile, at: int) -> str:
    """The line that begins at byte `at` of a file, in words."""
    number = 1
    with file.open() as handle:
        while at > 0 and (content := handle.read(min(at, BUFFER_BYTES))):
            number += content.count(b"\n")
            at -= len(content)
    return f"line {number}"


def beginning(records: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
    """The first records of a file, from which its columns are found: at least PROBE_LINES, and of PROBE_BYTES."""
    total = 0
    for number, record in enumerate(records, start=1):
        yield record
        total += size(record)
        if total >= PROBE_BYTES and number >= PROBE_LINES:
            return


def lines(handle: BinaryIO, start: int, end: int | None, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """The lines whose first byte lies in [start, end), with that byte's place: ranges that tile a file tile its lines.

    Lines keep their newlines. A line of more than MAX_LINE_BYTES is cut there.

    at: the position of `handle`, where a line starts. end: None for the end of the file. Seeks only where start > at.
    """
    if start > at:
        handle.seek(start - 1)
    reader = io.BufferedReader(handle, BUFFER_BYTES)  # type: ignore[type-var] # readline of fsspec has no limit
    try:
        if start > at:
            at = start - 1 + _rest_of_line(reader)
        while end is None or at < end:
            line = reader.readline(MAX_LINE_BYTES)
            if not line:
                return
            yield at, line
            at += len(line)
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                at += _rest_of_line(reader)
    finally:
        with suppress(ValueError):  # `handle` was closed before this generator
            reader.detach()


def _rest_of_line(reader: BinaryIO) -> int:
    """Read up to the end of the line. Returns the number of bytes."""
    size = 0
    while part := reader.readline(BUFFER_BYTES):
        size += len(part)
        if part.endswith(b"\n"):
            break
    return size


def lines_in(found: bytes) -> list[bytes]:
    """The lines of the beginning of a file, without the last one, which may be cut."""
    return found.split(b"\n")[:-1]


def check_encoding(file: DataFile, records_in: Callable[[bytes], list[bytes]] = lines_in) -> None:
    """Raise UnreadableDataError for a file whose text is not UTF-8, such as Latin-1 or UTF-16.

    A byte order mark decides; else the first mebibyte: at least MANY_LINES records of it are not UTF-8, and half of
    those with other characters than ASCII.

    Args:
        file: the file.
        records_in: the records of the beginning of a file.
    """
    with file.open() as handle:
        found = handle.read(PROBE_BYTES)
    others = [record for record in records_in(found) if not record.isascii()]
    wrong = sum(not _is_utf8(record) for record in others)
    wide = found.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or found[:4].count(0) in (2, 3)
    if wide or (wrong >= MANY_LINES and 2 * wrong > len(others)):
        name = "UTF-16 or UTF-32" if wide else "not UTF-8"
        raise file.fault("", f"its text is {name}: save it as UTF-8 (in Excel: CSV UTF-8)")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
