"""From a data set in memory to raw tables, without Ray.

In comes a list, a torch data set, a DataFrame, an Arrow table, or a Hugging Face data set. The values keep the types
that the data set gives them until `raw_table` converts them; the place of a record is its index.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tensorguard.data.arrow_rows import arrow_rows, class_names_of, schema_columns
from tensorguard.data.columns import FileColumns, check_types, paths_in, value_in
from tensorguard.data.errors import DataError
from tensorguard.data.raw_table import Rows, Wanted, raw_table
from tensorguard.data.records import ADVICE, EMPTY, is_data_frame, records_of

BLOCK_ROWS = 16_384


def memory_tables(source: Any, wanted: Wanted) -> Iterator[pa.Table]:
    """The raw tables of a data set in memory. `wanted.where` is the argument that errors name.

    Raises DataError where it is of a type that is not known, is empty, or lacks a column.
    """
    rows = _rows(source, wanted)
    if not rows.at:
        raise DataError(f"{wanted.where}: {EMPTY}")
    for start in range(0, len(rows.at), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        columns = {name: column[block] for name, column in rows.columns.items()}
        yield raw_table(Rows(columns, rows.at[block], rows.class_names), wanted, place=place_in_memory)


def place_in_memory(at: int) -> str:
    """The place of a record in memory, in words."""
    return f"index {at}"


def _rows(source: Any, wanted: Wanted) -> Rows:
    if is_data_frame(source):
        return _rows_of_frame(source, wanted)
    if all(hasattr(source, name) for name in ("with_format", "column_names", "__getitem__", "__len__")):
        return _rows_of_dataset(source, wanted)
    if hasattr(source, "__arrow_c_stream__"):
        table = pa.table(source)
        return _rows_of_table(table, table.schema, wanted)
    records = records_of(source, wanted.where)
    names = dict.fromkeys(name for record in records for name in (*record, *paths_in(record, wanted.names)))
    if records:
        FileColumns(list(names), advice=ADVICE, objects=False).check(wanted.names, "the data set", wanted.where)
    columns = {name: [value_in(record, name) for record in records] for name in wanted.names}
    schema = getattr(getattr(source, "features", None), "arrow_schema", None)  # of an iterable data set of Hugging Face
    return Rows(columns, range(len(records)), class_names_of(schema) if schema is not None else {})


def _rows_of_frame(frame: Any, wanted: Wanted) -> Rows:
    """The rows of a pandas DataFrame. Its types decide which columns fit; its values are those of Python."""
    names = [str(name) for name in frame.columns]
    found = FileColumns(names, advice=ADVICE)
    found.check(wanted.names, "the data set", wanted.where)
    columns, types = {}, {}
    for name in wanted.names:
        top, *fields = found.find(name) or ()
        column = frame.iloc[:, names.index(top)]
        if not fields:
            types[name] = pa.array(column.iloc[:0], from_pandas=True).type
        values = column.tolist()
        columns[name] = [value_in({top: value}, ".".join((top, *fields))) for value in values] if fields else values
    typed = {role: name for role, name in wanted.columns.items() if types.get(name, pa.null()) != pa.null()}
    check_types(typed, types, wanted.where)
    return Rows(columns, range(len(frame)))


def _rows_of_dataset(source: Any, wanted: Wanted) -> Rows:
    """The rows of a data set of Hugging Face. Raises DataError for a transform, which would be ignored."""
    if source.format.get("type") == "custom":
        raise DataError(
            f"{wanted.where}: has a transform (set_transform or with_transform), which is not run: apply it with map() "
            "first"
        )
    return _rows_of_table(source.with_format("arrow")[:], source.features.arrow_schema, wanted)


def _rows_of_table(table: pa.Table, schema: pa.Schema, wanted: Wanted) -> Rows:
    found = schema_columns(table.schema)
    FileColumns(found.names, found.types, ADVICE).check(wanted.names, "the data set", wanted.where)
    check_types(wanted.columns, {name: found.type_of(name) for name in wanted.names}, wanted.where)
    places = {name: found.find(name) for name in wanted.names}
    return arrow_rows(table, places, schema, range(len(table)))
