"""Apache Parquet: columns have names and Arrow types, and the shares of a file are its row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from tensorguard.data.columns import FileColumns
from tensorguard.data.formats.base import DataFile
from tensorguard.data.formats.text import TABLE_BYTES, TABLE_ROWS


class Parquet:
    """`.parquet`, `.pq`. Parquet compresses inside the file, so no compression ending may follow."""

    name = "parquet"
    endings = (".parquet", ".pq")
    splittable = True
    compressible = False

    def columns(self, file: DataFile, wanted: Sequence[str]) -> FileColumns:
        """Names and types from the file's footer."""
        with file.open() as handle, pq.ParquetFile(handle) as found:
            return _columns(found.schema_arrow)

    def rows(self, file: DataFile, wanted: Sequence[str], part: int, parts: int) -> Iterator[pa.Table]:
        """The rows of every `parts`-th row group, from the `part`-th on."""
        with file.open() as handle, pq.ParquetFile(handle) as found:
            _columns(found.schema_arrow).check(wanted, file.path, f"{file.where}.columns")
            groups = list(range(part, found.num_row_groups, parts))
            for batch in found.iter_batches(_rows_at_once(found), row_groups=groups, columns=list(wanted)):
                yield pa.Table.from_batches([batch]).select(list(wanted))


def _rows_at_once(file: pq.ParquetFile) -> int:
    """As many rows as fit into a table: fewer where rows are large, such as images."""
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    largest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    return max(1, min(TABLE_ROWS, TABLE_BYTES // max(1, largest)))


def _columns(schema: pa.Schema) -> FileColumns:
    return FileColumns(schema.names, types=dict(zip(schema.names, schema.types)))
