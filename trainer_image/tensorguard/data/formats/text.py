"""What the text formats share: lines, rows of text, and `LineFormat` for formats in which one record is one line.

Why not the readers of Ray Data or Arrow: they infer a column's type from the first records, then fail on the first
record that disagrees, and quote it. Here values are read as text, and a line that cannot be parsed is dropped. So one
record can neither stop a job nor appear in an error message.
"""

from __future__ import annotations

import codecs
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, ClassVar, TypeVar

import pyarrow as pa

from tensorguard.data.columns import FileColumns
from tensorguard.data.compression import BUFFER_BYTES
from tensorguard.data.errors import UnreadableDataError
from tensorguard.data.formats.base import DataFile

T = TypeVar("T")
TABLE_ROWS = 4096
TABLE_BYTES = 16 << 20
PROBE_BYTES, PROBE_LINES = 1 << 20, 100
"""How much of a file `beginning` reads: at least both. One record cannot hide the others."""
MANY_LINES = 10
"""A file with fewer records that are not UTF-8 is read: one record must not stop a job."""
MAX_LINE_BYTES = 32 << 20
"""The limit of a line, so that one record cannot take the memory of a worker: a longer one is dropped unread, or ends
the job in formats where it is not certain that the record ends with the line."""


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
        """One line's record as column name to value. An empty record, or any exception, drops the line.

        The line keeps its newline.
        """

    def columns(self, file: DataFile, wanted: Sequence[str]) -> FileColumns:
        """The names that occur at the beginning of the file."""
        names: dict[str, None] = {}
        check_encoding(file)
        with file.open() as handle:
            for line in beginning(lines(handle, 0, None), len):
                names.update(dict.fromkeys(self._record(line)))
                if names.keys() >= set(wanted):
                    break
        return FileColumns(list(names), advice="write the name as the records spell it", fixed=False)

    def rows(self, file: DataFile, wanted: Sequence[str], part: int, parts: int) -> Iterator[pa.Table]:
        """The records of the lines that start in the share's byte range."""
        if part == 0:
            check_encoding(file)
        with file.open() as handle:
            found = self._rows(lines(handle, *file.byte_range(part, parts)), wanted, file.user)
            yield from text_tables(found, wanted)

    def _rows(self, found: Iterable[bytes], wanted: Sequence[str], user: str | None) -> Iterator[list[str | None]]:
        for line in found:
            record = self._record(line)
            if not record or (user is not None and user not in record):
                continue
            try:
                row = [text_of(record.get(name)) for name in wanted]
            except (ValueError, TypeError, RecursionError):
                continue
            yield row

    def _record(self, line: bytes) -> Mapping[str, Any]:
        try:
            return self.parse(line)
        except MemoryError:
            raise
        except Exception:  # whatever a parser raises for one line drops that line alone
            return {}


def beginning(records: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
    """The first records of a file, from which its columns are found: at least PROBE_LINES, and of PROBE_BYTES."""
    total = 0
    for number, record in enumerate(records, start=1):
        yield record
        total += size(record)
        if total >= PROBE_BYTES and number >= PROBE_LINES:
            return


def lines(handle: BinaryIO, start: int, end: int | None, at: int = 0, *, cut: bool = False) -> Iterator[bytes]:
    """The lines whose first byte lies in [start, end), with their newlines: ranges that tile a file tile its lines.

    Of a line of more than MAX_LINE_BYTES, nothing is in the result or, with `cut`, its first MAX_LINE_BYTES.

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
            at += len(line)
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                if cut:
                    yield line
                at += _rest_of_line(reader)
            else:
                yield line
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

    The first mebibyte decides: at least MANY_LINES records of it are not UTF-8, and half of those with other characters
    than ASCII. A single record can have bytes of any kind: they become the replacement character.

    Args:
        file: the file.
        records_in: the records of the beginning of a file.
    """
    with file.open() as handle:
        found = handle.read(PROBE_BYTES)
    records = records_in(found)
    others = [record for record in records if not record.isascii()]
    wrong = sum(not _is_utf8(record) for record in others)
    wide = found.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    wide = wide and sum(b"\0" in record for record in records) >= MANY_LINES
    if wide or (wrong >= MANY_LINES and 2 * wrong > len(others)):
        raise UnreadableDataError(
            f"{file.where}.uri: the text of {file.path} is not UTF-8: save it as UTF-8 (in Excel: CSV UTF-8)"
        )


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def text_of(value: object) -> str | None:
    """A record's value as the text that the tokeniser reads: strings unchanged, other values as JSON.

    None stays None. NaN, by which tables often mark a missing value, becomes None.
    """
    if value is None or isinstance(value, str):
        return value
    if value != value:
        return None
    return json.dumps(value, ensure_ascii=False)


def text_table(rows: list[list[str | None]], columns: Iterable[str]) -> pa.Table:
    """Rows of text as an Arrow table of string columns. UTF-8 cannot hold lone surrogates: they become "?"."""
    arrays = {}
    for i, name in enumerate(columns):
        values = [row[i] for row in rows]
        try:
            arrays[name] = pa.array(values, pa.large_string())
        except UnicodeEncodeError:
            clean = [None if v is None else v.encode("utf-8", "replace").decode() for v in values]
            arrays[name] = pa.array(clean, pa.large_string())
    return pa.table(arrays)


def text_tables(rows: Iterable[list[str | None]], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Rows of text as tables of at most TABLE_ROWS rows, and of about TABLE_BYTES."""
    held: list[list[str | None]] = []
    size = 0
    for row in rows:
        held.append(row)
        size += sum(len(value) for value in row if value)
        if len(held) < TABLE_ROWS and size < TABLE_BYTES:
            continue
        yield text_table(held, columns)
        held, size = [], 0
    if held:
        yield text_table(held, columns)
