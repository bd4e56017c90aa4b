"""Apache Parquet: columns have names and Arrow types, and the shares of a file are its row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from tensorguard.data.columns import FileColumns
from tensorguard.data.formats.base import DataFile
from tensorguard.data.formats.text import TABLE_ROWS


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
            for batch in found.iter_batches(TABLE_ROWS, row_groups=groups, columns=list(wanted)):
                yield pa.Table.from_batches([batch]).select(list(wanted))


def _columns(schema: pa.Schema) -> FileColumns:
    return FileColumns(schema.names, types=dict(zip(schema.names, schema.types)))
