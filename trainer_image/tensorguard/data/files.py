"""Files of records on any fsspec file system: which columns they have, and their rows as Arrow tables.

`listing` finds out once what there is and ships the resulting `Source` to Ray tasks, each of which calls
`Source.tables` on the fragments it is given. A fragment is a share of one file: row groups of a parquet file, a byte
range of a jsonl or tsv file (one record is one line), or a whole csv or compressed file (a quoted newline makes csv
unsplittable).

Why not the readers of Ray Data or Arrow: they infer a column's type from the first records and then fail on the first
one that disagrees, quoting it. Here text formats are read as text, and a line that cannot be parsed is dropped: one
record can neither stop a job nor show up in an error message.

- csv: RFC 4180 quoting, newlines in quotes included; first row names the columns. (A quote that is never closed
  swallows what follows, as the format has it.)
- tsv: no quoting at all (a quote is a character like any other); first row names the columns.
- A column named by a decimal integer ("0", "1") is a position in a csv or tsv file **without** a header row.
- jsonl (also .ndjson and .json): one object a line; a value that is no string is kept as its JSON text.
- Any of the three may be compressed (.gz, .bz2, .xz, .zst where fsspec has the codec).
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.utils import infer_compression

from tensorguard.data.columns import check_columns, check_text_columns
from tensorguard.data.errors import DataError, Unreadable

TABLE_ROWS = 4096
TABLE_BYTES = 16 << 20


@dataclass(frozen=True)
class Source:
    """What every reading task needs to know of the data set; small, picklable, without a record in it.

    protocol, options: the fsspec file system. columns: the columns to read (names, or positions as decimal integers).
    `where` names the manifest's field in errors, such as "spec.dataset".
    """

    protocol: str
    options: Mapping[str, Any]
    format: str
    columns: tuple[str, ...]
    where: str = "spec.dataset"
    positional: bool = field(init=False)

    def __post_init__(self) -> None:
        numbers = [name.isdecimal() for name in self.columns]
        positional = self.format in ("csv", "tsv") and any(numbers)
        if positional and not all(numbers):
            raise DataError(
                f"{self.where}.columns: name all columns of a {self.format} file by its header, or all by position"
            )
        object.__setattr__(self, "positional", positional)

    def tables(self, path: str, part: int, parts: int) -> Iterator[pa.Table]:
        """The rows of share `part` of `parts` of one file, as tables of at most a few thousand rows.

        Raises DataError, without a word of the content, where the file cannot be read.
        """
        try:
            filesystem = fsspec.filesystem(self.protocol, **self.options)
            if self.format == "parquet":
                yield from self._parquet(filesystem, path, part, parts)
                return
            yield from _text_tables(self._rows(filesystem, path, part, parts), self.columns)
        except DataError:
            raise
        except Exception as error:
            raise Unreadable(
                f"{self.where}.uri: cannot read {path} as {self.format} ({type(error).__name__})"
            ) from None

    def _parquet(self, filesystem: Any, path: str, part: int, parts: int) -> Iterator[pa.Table]:
        with filesystem.open(path, "rb") as handle, pq.ParquetFile(handle) as file:
            check_columns(self.columns, file.schema_arrow.names, path, f"{self.where}.columns")
            groups = list(range(part, file.num_row_groups, parts))
            for batch in file.iter_batches(TABLE_ROWS, row_groups=groups, columns=list(self.columns)):
                yield pa.Table.from_batches([batch]).select(list(self.columns))

    def _rows(self, filesystem: Any, path: str, part: int, parts: int) -> Iterator[list[str | None]]:
        """Rows as lists of text in the order of `columns`; None where a row lacks the value."""
        compression = infer_compression(path)
        with filesystem.open(path, "rb", compression=compression) as handle:
            size = sys.maxsize if compression else filesystem.size(path)
            start, end = size * part // parts, size * (part + 1) // parts
            if self.format == "jsonl":
                for line in lines(handle, start, end):
                    yield from _json_row(line, self.columns)
                return
            if self.format == "csv":
                rows = csv_rows(handle)
                at = self._positions(path, next(rows, []) if not self.positional else None)
            else:
                header = b"" if self.positional else handle.readline()
                at = self._positions(path, None if self.positional else tsv_row(header))
                rows = (tsv_row(line) for line in lines(handle, max(start, len(header)), end))
            for row in rows:
                if row:
                    yield [row[i] if i < len(row) else None for i in at]

    def _positions(self, path: str, header: list[str] | None) -> list[int]:
        if header is None:
            return [int(name) for name in self.columns]
        check_text_columns(self.columns, header, path, self.format, f"{self.where}.columns")
        return [header.index(name) for name in self.columns]


def csv_rows(handle: BinaryIO) -> Iterator[list[str]]:
    """Rows of a csv file; bytes that are no UTF-8 become the replacement character, a row without a form is skipped."""
    csv.field_size_limit(1 << 31)
    reader = csv.reader(io.TextIOWrapper(handle, encoding="utf-8-sig", errors="replace", newline=""))
    while True:
        try:
            yield next(reader)
        except csv.Error:
            continue
        except StopIteration:
            return


def tsv_row(line: bytes) -> list[str]:
    """The fields of one line of a tsv file; none for an empty line."""
    text = line.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n")
    return text.split("\t") if text else []


def text_of(value: object) -> str | None:
    """A value of a jsonl record, or of a Python record, as the text that the tokeniser reads; None stays None.

    NaN, by which tables often say that a value is missing, is None too.
    """
    if value is None or isinstance(value, str):
        return value
    if value != value:
        return None
    return json.dumps(value, ensure_ascii=False)


def text_table(rows: list[list[str | None]], columns: Iterable[str]) -> pa.Table:
    """Rows of text as an Arrow table with string columns; half surrogates, which UTF-8 cannot hold, become "?"."""
    arrays = {}
    for i, name in enumerate(columns):
        values = [row[i] for row in rows]
        try:
            arrays[name] = pa.array(values, pa.large_string())
        except UnicodeEncodeError:
            clean = [None if v is None else v.encode("utf-8", "replace").decode() for v in values]
            arrays[name] = pa.array(clean, pa.large_string())
    return pa.table(arrays)


def _text_tables(rows: Iterator[list[str | None]], columns: tuple[str, ...]) -> Iterator[pa.Table]:
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


def lines(handle: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """The lines whose first byte lies in [start, end): ranges that tile a file tile its lines."""
    at = max(start - 1, 0)
    handle.seek(at)
    if start:
        at += len(handle.readline())
    while at < end:
        line = handle.readline()
        if not line:
            return
        yield line
        at += len(line)


def json_object(line: bytes) -> dict[str, Any]:
    """The JSON object that a line holds; empty for any other line."""
    try:
        value = json.loads(line.decode("utf-8", "replace").removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _json_row(line: bytes, columns: tuple[str, ...]) -> Iterator[list[str | None]]:
    record = json_object(line)
    if not record:
        return
    try:
        yield [text_of(record.get(name)) for name in columns]
    except (ValueError, RecursionError):
        return
