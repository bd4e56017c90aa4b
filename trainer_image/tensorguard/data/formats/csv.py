"""Comma-separated and tab-separated values, with or without a header row.

- csv: RFC 4180 quoting; a quoted value may hold newlines, so a csv file cannot be split. A wrong quote would make one
  value of several records, of several users. So a file is refused if a quote is never closed, if text follows a closing
  quote, as where quotes are escaped by backslashes, or if a value that is not quoted has a quote: its writer does not
  quote, so a value that begins with a quote would swallow those up to the next quote. Nor may a row end in a carriage
  return where the first one does not, or in a backslash: pandas writes the one into a value without quotes, MySQL the
  other before a newline in a value, and one record would be several.
- tsv: no quoting and no escapes: a quote is a character like any other, and one record is one line. Other writers quote
  a value that holds a newline, or write a backslash before it, and one record would be several. So a file is refused
  if a value begins with a quote and its line does not close it, or if a value ends in a backslash.

The first row names the columns. A row with more values than names is not used: one of its values holds a separator, and
moves the others. Empty values at its end count only if there is a column of the user, whose id could be moved.
A column named by a decimal integer ("0", "1") is a position in a file **without** a header row.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO

import pyarrow as pa

from tensorguard.data.columns import FileColumns
from tensorguard.data.compression import BUFFER_BYTES
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.formats.base import DataFile
from tensorguard.data.formats.text import MAX_LINE_BYTES, beginning, check_encoding, lines, text_tables

_VALUE = r'(?:"[^"]*+(?:""[^"]*+)*+"|[^",\r\n]*+)'
_OPEN_QUOTE = re.compile(r'(?:^|\t)"(?:[^"\t]*+(?:""[^"\t]*+)*+|(?:[^"\\\t]++|\\.)*+)(?![^\t])')
"""In a line of a tsv file: the quote of a value that is not closed, whether quotes inside are doubled or escaped."""
_QUOTED_ROW = re.compile(rf"{_VALUE}(?:,{_VALUE})*+[\r\n]*+")
"""The text of a row in which each quote belongs to a quoted value."""
_WRITE_TWO = 'write a quote inside a quoted value as two (""), and not as \\"'
_QUOTE = "quote text, as pandas does with quoting=csv.QUOTE_NONNUMERIC"
_FAULTS = {
    "too long": "more than 32 Mi characters or 1 Mi separators, or a quote that is never closed: remove it",
    "expected after": f"text after a closing quote (or an earlier quote is not closed): {_WRITE_TWO}",
    "a quote in": "a quote in a value that is not quoted: quote such values, and write a quote inside as two",
    "carriage return": f"a carriage return in a value that is not quoted, or another end than the first row: {_QUOTE}",
    "a backslash": f"a backslash at its end, which may escape a newline: {_QUOTE}",
}
_ONE_LINE = "a tsv file has no quotes or escapes, and one record is one line: write jsonl, or csv with quoted text"
_NEVER_CLOSED = f"a quote that is never closed: {_WRITE_TWO}"

MAX_ROW_CHARACTERS = MAX_LINE_BYTES
"""A file with a longer row is refused: it could take the memory of a worker, and its end cannot be checked."""
MAX_ROW_SEPARATORS = 1 << 20
"""A file with a row of more separators, also in quoted text, is refused: each value takes some 70 bytes of memory."""


class Csv:
    """`.csv`"""

    name = "csv"
    endings = (".csv",)
    splittable = False
    compressible = True

    def columns(self, file: DataFile, wanted: Sequence[str]) -> FileColumns:
        """The fields of the first row, or positions, as many as the longest of the first rows has values."""
        check_encoding(file, _csv_records)
        with file.open() as handle:
            return _columns(_csv_rows(handle, file), wanted, _by_position(self.name, wanted, file))

    def rows(self, file: DataFile, wanted: Sequence[str], part: int, parts: int) -> Iterator[pa.Table]:
        """All rows: there is one part."""
        check_encoding(file, _csv_records)
        with file.open() as handle:
            rows = _csv_rows(handle, file)
            header = None if _by_position(self.name, wanted, file) else next(rows, [])
            yield from text_tables(_values(rows, header, wanted, file), wanted)


class Tsv:
    """`.tsv`"""

    name = "tsv"
    endings = (".tsv",)
    splittable = True
    compressible = True

    def columns(self, file: DataFile, wanted: Sequence[str]) -> FileColumns:
        """The fields of the first row, or positions, as many as the longest of the first rows has values."""
        check_encoding(file)
        with file.open() as handle:
            rows = _tsv_rows(lines(handle, 0, None, cut=True), file)
            return _columns(rows, wanted, _by_position(self.name, wanted, file))

    def rows(self, file: DataFile, wanted: Sequence[str], part: int, parts: int) -> Iterator[pa.Table]:
        """The rows of the lines that start in the share's byte range."""
        if part == 0:
            check_encoding(file)
        with file.open() as handle:
            by_position = _by_position(self.name, wanted, file)
            reader = io.BufferedReader(handle, BUFFER_BYTES)  # type: ignore[type-var] # readline of fsspec has no limit
            first = b"" if by_position else reader.readline(MAX_LINE_BYTES)
            header = None if by_position else next(_tsv_rows([first], file))
            found = _tsv_rows(lines(reader, *file.byte_range(part, parts), at=len(first), cut=True), file)
            yield from text_tables(_values(found, header, wanted, file), wanted)


def _by_position(name: str, wanted: Sequence[str], file: DataFile) -> bool:
    """Whether the job names columns by position."""
    numbers = [column.isdecimal() for column in wanted]
    if any(numbers) and not all(numbers):
        raise DataError(
            f"{file.where}.columns: some columns of the {name} file are named by position and some by header: "
            "name all columns by its header, or all by position"
        )
    return any(numbers)


def _columns(rows: Iterator[list[str]], wanted: Sequence[str], by_position: bool) -> FileColumns:
    if by_position:
        needed = 1 + max(map(int, wanted))
        most = max((len(row) for row in beginning(rows, lambda row: sum(map(len, row)))), default=0)
        return FileColumns([str(i) for i in range(min(most, needed))])
    return _header_columns(next(rows, []))


def _header_columns(first: Sequence[str]) -> FileColumns:
    advice = (
        f'it has {len(first)} columns; if the file has no header row, name columns by position ("0", "1")'
        if len(first) > 1
        else "it has one column: separate the values by commas in a .csv file, and by tabs in a .tsv file"
    )
    return FileColumns(first, advice=advice)


def _positions(header: list[str] | None, wanted: Sequence[str], file: DataFile) -> list[int]:
    """Where the wanted columns are in each row. header: None for columns that are named by position."""
    if header is None:
        return [int(name) for name in wanted]
    _header_columns(header).check(wanted, file.path, f"{file.where}.columns")
    return [header.index(name) for name in wanted]


def _values(
    rows: Iterator[list[str]], header: list[str] | None, wanted: Sequence[str], file: DataFile
) -> Iterator[list[str | None]]:
    """The values of the wanted columns; None where a row is too short.

    Empty rows, those with more values than names, and those that end before the column of the user are dropped. Empty
    values beyond the names count only if there is a column of the user.
    """
    positions = _positions(header, wanted, file)
    least = 1 if file.user is None else 1 + positions[list(wanted).index(file.user)]
    width = None if header is None else len(header)
    for row in rows:
        moved = width is not None and (any(row[width:]) if file.user is None else len(row) > width)
        if len(row) >= least and not moved:
            yield [row[i] if i < len(row) else None for i in positions]


def _csv_records(found: bytes) -> list[bytes]:
    """The rows of the beginning of a csv file, as bytes: a quoted value may hold any number of lines."""
    rows: list[bytes] = []
    csv.field_size_limit(MAX_ROW_CHARACTERS)  # of the process
    reader = csv.reader(io.StringIO(found.decode("latin-1"), newline=""))
    with suppress(csv.Error):
        rows += (",".join(row).encode("latin-1") for row in reader)
    return rows[:-1]  # the last one may be cut


def _csv_rows(handle: BinaryIO, file: DataFile) -> Iterator[list[str]]:
    """Rows of a csv file. Bytes that are not UTF-8 become the replacement character.

    Raises UnreadableDataError, with the line, for a row that has one of _FAULTS, or whose quote is never closed.
    """
    rows = _TextOfRows(io.TextIOWrapper(handle, encoding="utf-8-sig", errors="replace", newline=""))
    reader = csv.reader(rows, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            csv.field_size_limit(MAX_ROW_CHARACTERS)  # of the process: other code may have changed it
            row = next(reader)
            text = rows.take()
            if '"' in text and not _QUOTED_ROW.fullmatch(text):
                raise csv.Error("a quote in a value that is not quoted")
            if not rows.ends_as_before(text):
                raise csv.Error("a carriage return in a value that is not quoted")
            if _ends_in_escape(text.rstrip("\r\n")):
                raise csv.Error("a backslash at the end of a row")
        except StopIteration:
            return
        except csv.Error as error:
            found = next((text for part, text in _FAULTS.items() if part in str(error)), _NEVER_CLOSED)
            raise UnreadableDataError(
                f"{file.where}.uri: {file.path}: the row that begins in line {line} has {found}"
            ) from None
        yield row


class _TextOfRows:
    """The lines of a csv file, with the text of the row to which the last ones belong.

    Raises csv.Error for a row of more than MAX_ROW_CHARACTERS.
    """

    def __init__(self, handle: io.TextIOWrapper) -> None:
        self._handle = handle
        self._text = io.StringIO()
        self._separators = 0
        self._by_return: bool | None = None

    def __iter__(self) -> Iterator[str]:
        while line := self._handle.readline(MAX_ROW_CHARACTERS + 1):
            self._text.write(line)
            self._separators += line.count(",")
            if self._text.tell() > MAX_ROW_CHARACTERS or self._separators > MAX_ROW_SEPARATORS:
                raise csv.Error("row too long")
            yield line

    def take(self) -> str:
        """The text of the lines that were read since the last call."""
        text, self._text, self._separators = self._text.getvalue(), io.StringIO(), 0
        return text

    def ends_as_before(self, text: str) -> bool:
        """Whether a row ends in a carriage return alone if the first one does, and only then.

        The last row of a file may have no end.
        """
        if not text.endswith(("\r", "\n")):
            return True
        by_return = text.endswith("\r")
        if self._by_return is None:
            self._by_return = by_return
        return self._by_return == by_return


def _tsv_rows(found: Iterable[bytes], file: DataFile) -> Iterator[list[str]]:
    """The fields of each line; none for an empty line.

    Raises UnreadableDataError, with the first such line of the file, for a line whose record may continue in the next.
    """
    for line in found:
        text = _tsv_text(line)
        if _tsv_fault(line, text):
            with file.open() as handle:
                faults = (_tsv_fault(each, _tsv_text(each)) for each in lines(handle, 0, None, cut=True))
                number, fault = next((n, fault) for n, fault in enumerate(faults, start=1) if fault)
            raise UnreadableDataError(f"{file.where}.uri: {file.path}: line {number} has {fault}")
        yield text.split("\t") if text else []


def _tsv_text(line: bytes) -> str:
    return line.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n")


def _tsv_fault(line: bytes, text: str) -> str | None:
    """What shows, or does not exclude, that the record of a line continues in the next; None if nothing does."""
    if len(line) >= MAX_LINE_BYTES:
        return "32 MiB or more: remove it"
    if text.count("\t") > MAX_ROW_SEPARATORS:
        return "more than 1 Mi separators: remove it"
    if '"' in text and _OPEN_QUOTE.search(text):
        return f"a value that begins with a quote which the line does not close: {_ONE_LINE}"
    if "\\" in text and any(map(_ends_in_escape, text.split("\t"))):
        return f"a backslash at the end of a value, which may escape a tab or a newline: {_ONE_LINE}"
    return None


def _ends_in_escape(text: str) -> bool:
    """Whether a text ends in a backslash that no other one escapes."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1
