"""Comma-separated and tab-separated values, with or without a header row.

- csv: RFC 4180 quoting; a quoted value may hold newlines, so a csv file cannot be split. A wrong quote would make one
  value of several records, of several users. So a file is refused if a quote is never closed, if text follows a closing
  quote, as where quotes are escaped by backslashes, or if a value that is not quoted has a quote: its writer does not
  quote, so a value that begins with a quote would swallow those up to the next quote. Nor may a row end in a carriage
  return where the first one does not, or in a backslash: pandas writes the one into a value without quotes, MySQL the
  other before a newline in a value, and one record would be several.
- tsv: no quoting and no escapes: a quote is a character like any other, and one record is one line. Other writers quote
  a value that holds a newline, or write a backslash before it, and one record would be several. So a file is refused
  if a value begins with a quote and its line does not close it, if a whole value is in quotes, or if a value ends in a
  backslash.

The first row names the columns, and each further row has as many values. Blank lines are no rows. A column named by a
decimal integer ("0", "1") is a position in a file **without** a header row.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import BinaryIO

from tensorguard.data.columns import FileColumns, form_of
from tensorguard.data.compression import BUFFER_BYTES
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.formats.base import DataFile
from tensorguard.data.formats.text import MAX_LINE_BYTES, check_encoding, grouped, line_at, lines
from tensorguard.data.raw_table import Rows
from tensorguard.data.values import decoded

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

HEADER_LINES = 20
"""In how many rows after the first a header is looked for, to explain why the first is none."""
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}

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
        """The fields of the first row, or positions, as many as the first row has values."""
        check_encoding(file, _csv_records)
        with file.open() as handle:
            return _columns(_csv_rows(handle, file), wanted, file, self.place)

    def rows(self, file: DataFile, wanted: Sequence[str], part: int, parts: int) -> Iterator[Rows]:
        """All rows: there is one part."""
        with file.open() as handle:
            rows = _csv_rows(handle, file)
            at, header = next(rows, (1, []))
            if _by_position(wanted, file):
                rows = itertools.chain([(at, header)], rows)
            yield from grouped(_values(rows, header, wanted, file, self.place), wanted)

    def place(self, file: DataFile, at: int) -> str:
        """The line in which the row begins."""
        return f"line {at}"


class Tsv:
    """`.tsv`"""

    name = "tsv"
    endings = (".tsv",)
    splittable = True
    compressible = True

    def columns(self, file: DataFile, wanted: Sequence[str]) -> FileColumns:
        """The fields of the first row, or positions, as many as the first row has values."""
        check_encoding(file)
        with file.open() as handle:
            return _columns(_tsv_rows(lines(handle, 0, None), file), wanted, file, self.place)

    def rows(self, file: DataFile, wanted: Sequence[str], part: int, parts: int) -> Iterator[Rows]:
        """The rows of the lines that start in the share's byte range."""
        with file.open() as handle:
            reader = io.BufferedReader(handle, BUFFER_BYTES)  # type: ignore[type-var] # readline of fsspec has no limit
            at, end = 0, 0
            header: list[str] = []
            while not header and (first := reader.readline(MAX_LINE_BYTES)):
                at, end = end, end + len(first)
                header = next(_tsv_rows([(at, first)], file), (0, []))[1]
            found = _tsv_rows(lines(reader, *file.byte_range(part, parts), at=end), file)
            if part == 0 and _by_position(wanted, file):
                found = itertools.chain([(at, header)], found)
            yield from grouped(_values(found, header, wanted, file, self.place), wanted)

    def place(self, file: DataFile, at: int) -> str:
        """The line that begins at byte `at`."""
        return line_at(file, at)


_PlacedRow = tuple[int, list[str]]
_Place = Callable[[DataFile, int], str]


def _by_position(wanted: Sequence[str], file: DataFile) -> bool:
    """Whether the job names columns by position."""
    numbers = [column.isdecimal() for column in wanted]
    if any(numbers) and not all(numbers):
        raise DataError(
            f"{file.where}.columns: some columns of {file.path} are named by position and some by header: "
            "name all columns by its header, or all by position"
        )
    return any(numbers)


def _columns(rows: Iterator[_PlacedRow], wanted: Sequence[str], file: DataFile, place: _Place) -> FileColumns:
    at, first = next(rows, (0, []))
    if _by_position(wanted, file):
        return FileColumns([str(i) for i in range(len(first))], objects=False)
    found = FileColumns(first, objects=False)
    if all(found.find(name) for name in wanted):
        return replace(found, advice="")
    beginning = [(at, first)]
    with suppress(UnreadableDataError):  # where another separator is used, quotes are at other places
        for row in itertools.islice(rows, HEADER_LINES):
            beginning.append(row)
    return replace(found, advice=_why_no_header(beginning, wanted, lambda at: place(file, at)))


def _why_no_header(rows: Sequence[_PlacedRow], wanted: Sequence[str], place: Callable[[int], str]) -> str:
    """The usual causes of a first row without the wanted columns, and the fix."""
    first = rows[0][1]
    if any("\udc80" <= each <= "\udcff" for name in first for each in name):
        return "the first row is not UTF-8: save the file as UTF-8 (in Excel: CSV UTF-8)"
    for at, row in rows:
        text = ",".join(row)
        for separator, name in _SEPARATORS.items():
            header = FileColumns([each.strip('"') for each in text.split(separator)], objects=False)
            if not all(header.find(each) for each in wanted):
                continue
            if row is not first and len(row) > 1:
                return f"{place(at)} has the columns, and what is before it is no part of the table: remove that"
            return f"its values are separated by {name}: write commas in a .csv file, and tabs in a .tsv file"
    if len(first) > 1:
        return f'it has {len(first)} columns; if the file has no header row, name columns by position ("0", "1")'
    return "it has one column: separate the values by commas in a .csv file, and by tabs in a .tsv file"


def _values(
    rows: Iterator[_PlacedRow],
    header: list[str],
    wanted: Sequence[str],
    file: DataFile,
    place: _Place,
) -> Iterator[tuple[int, int, list[str | None]]]:
    """The place of each row, its length, and the values of the wanted columns, of which texts of `file.nulls` are None.

    Raises UnreadableDataError for a row with another number of values than the first, and for a second header.
    """
    if by_position := _by_position(wanted, file):
        positions = [int(name) for name in wanted]
    else:
        columns = FileColumns(header, advice="", objects=False)
        columns.check(wanted, file.path, f"{file.where}.columns")
        positions = [header.index((columns.find(name) or ("",))[0]) for name in wanted]
    width, names = len(header), {form_of(name).casefold() for name in header} - {""}
    longest = max(map(len, header), default=0) + 2  # a byte order mark or a space may be before a name
    for at, row in rows:
        if len(row) != width:
            raise file.fault(place(file, at), _why_not_as_wide(row, width))
        values = [row[i] for i in positions]
        may_be_names = not by_position and len(values) > 1 and all(len(value) <= longest for value in values)
        if may_be_names and all(form_of(value).casefold() in names for value in values):
            raise file.fault(place(file, at), "it has the columns' names again, as where files are joined: remove it")
        yield at, sum(map(len, values)), [None if value in file.nulls else value for value in values]


def _why_not_as_wide(row: Sequence[str], width: int) -> str:
    found = f"the row has {len(row)} values, and the first row of the file {width}"
    if len(row) == width + 1 and not row[-1].strip():
        return f"{found}: remove the separator at the end of rows, or write one at the end of the first row too"
    return f"{found}: quote a value that holds a separator, and write each value of a row"


def _csv_records(found: bytes) -> list[bytes]:
    """The rows of the beginning of a csv file, as bytes: a quoted value may hold any number of lines."""
    rows: list[bytes] = []
    csv.field_size_limit(MAX_ROW_CHARACTERS)  # of the process
    reader = csv.reader(io.StringIO(found.decode("latin-1"), newline=""))
    with suppress(csv.Error):
        rows += (",".join(row).encode("latin-1") for row in reader)
    return rows[:-1]  # the last one may be cut


def _csv_rows(handle: BinaryIO, file: DataFile) -> Iterator[_PlacedRow]:
    """The line in which each row of a csv file begins, and its values. Bytes that are not UTF-8 are as in `decoded`.

    Raises UnreadableDataError, with the line, for a row that has one of _FAULTS, or whose quote is never closed.
    """
    rows = _TextOfRows(io.TextIOWrapper(handle, encoding="utf-8-sig", errors="surrogateescape", newline=""))
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
            raise file.fault("", f"the row that begins in line {line} has {found}") from None
        if row:
            yield line, row


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


def _tsv_rows(found: Iterable[tuple[int, bytes]], file: DataFile) -> Iterator[_PlacedRow]:
    """The first byte of each line, and its fields. Blank lines have none.

    Raises UnreadableDataError for a line whose record may continue in the next.
    """
    for at, line in found:
        text = decoded(line).removeprefix("\ufeff").rstrip("\r\n")
        if fault := _tsv_fault(line, text):
            raise file.fault("", f"{line_at(file, at)} has {fault}")
        if text:
            yield at, text.split("\t")


def _tsv_fault(line: bytes, text: str) -> str | None:
    """What shows, or does not exclude, that the record of a line continues in the next; None if nothing does."""
    if len(line) >= MAX_LINE_BYTES:
        return "32 MiB or more: remove it"
    if text.count("\t") > MAX_ROW_SEPARATORS:
        return "more than 1 Mi separators: remove it"
    if '"' in text and _OPEN_QUOTE.search(text):
        return f"a value that begins with a quote which the line does not close: {_ONE_LINE}"
    if '"' in text and any(len(each) > 1 and each[0] == each[-1] == '"' for each in text.split("\t")):
        return f"a value in quotes, which may be part of it or not: {_ONE_LINE}"
    if "\\" in text and any(map(_ends_in_escape, text.split("\t"))):
        return f"a backslash at the end of a value, which may escape a tab or a newline: {_ONE_LINE}"
    return None


def _ends_in_escape(text: str) -> bool:
    """Whether a text ends in a backslash that no other one escapes."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1
