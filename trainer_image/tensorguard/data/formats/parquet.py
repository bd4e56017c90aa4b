"""Apache Parquet: columns have names and Arrow types, and the shares of a file are its row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import pyarrow.parquet as pq

from tensorguard.data.arrow_rows import arrow_rows, schema_columns
from tensorguard.data.columns import FileColumns
from tensorguard.data.formats.base import DataFile
from tensorguard.data.formats.text import TABLE_BYTES, TABLE_ROWS
from tensorguard.data.raw_table import Rows


class Parquet:
    """`.parquet`, `.pq`. Parquet compresses inside the file, so no compression ending may follow."""

    name = "parquet"
    endings = (".parquet", ".pq")
    splittable = True
    compressible = False

    def columns(self, file: DataFile, wanted: Sequence[str]) -> FileColumns:
        """Names and types from the file's footer."""
        with file.open() as handle, pq.ParquetFile(handle) as found:
            return schema_columns(found.schema_arrow)

    def rows(self, file: DataFile, wanted: Sequence[str], part: int, parts: int) -> Iterator[Rows]:
        """The rows of every `parts`-th row group, from the `part`-th on."""
        with file.open() as handle, pq.ParquetFile(handle) as found:
            columns = schema_columns(found.schema_arrow)
            columns.check(wanted, file.path, f"{file.where}.columns")
            places = {name: columns.find(name) or () for name in wanted}
            sizes = [found.metadata.row_group(i).num_rows for i in range(found.num_row_groups)]
            starts = list(accumulate(sizes, initial=0))
            read = [".".join(place) for place in places.values()]
            for group in range(
                part, found.num_row_groups, parts
            ):  # one by one: pyarrow cannot join nested dictionaries
                at = starts[group]
                for batch in found.iter_batches(_rows_at_once(found, group), row_groups=[group], columns=read):
                    yield arrow_rows(batch, places, found.schema_arrow, range(at, at + len(batch)))
                    at += len(batch)

    def place(self, file: DataFile, at: int) -> str:
        """The row, counted from 1."""
        return f"row {at + 1}"


def _rows_at_once(file: pq.ParquetFile, group: int) -> int:
    """As many rows as fit into a table: fewer where rows are large, such as images."""
    found = file.metadata.row_group(group)
    row: int = found.total_byte_size // max(1, found.num_rows)
    return max(1, min(TABLE_ROWS, TABLE_BYTES // max(1, row)))
