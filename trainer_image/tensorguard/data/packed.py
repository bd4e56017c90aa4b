"""Tables of records as single values, so that Ray can neither join them nor change their types.

Ray Data joins the tables that one task yields into blocks, and gives them one schema: whole numbers become floats where
another table has a fraction, objects get the fields of all others, and types that do not agree stop the job. So a
record of one file would change the records of another one. `packed` makes one row of a whole table, which `tables_in`
unpacks in the task that uses it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

_COLUMN = "tensafe packed table"


def packed(table: pa.Table) -> pa.Table:
    """A table of one row, which holds `table`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.table({_COLUMN: pa.array([sink.getvalue().to_pybytes()], pa.large_binary())})


def tables_in(block: pa.Table) -> Iterator[pa.Table]:
    """The tables that were packed into the rows of `block`, in their order."""
    for row in block.column(_COLUMN):
        yield pa.ipc.open_stream(row.as_buffer()).read_all()
