"""Rows of Arrow tables: those of parquet files, and of data sets in memory that have Arrow types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tensorguard.data.columns import FileColumns
from tensorguard.data.raw_table import Rows

Place = tuple[str, ...]
"""A column, and the fields of a path into its objects (`FileColumns.find`)."""


def schema_columns(schema: pa.Schema) -> FileColumns:
    """The columns of an Arrow schema."""
    return FileColumns(schema.names, types=dict(zip(schema.names, schema.types)))


def arrow_rows(
    table: pa.Table | pa.RecordBatch, places: Mapping[str, Place | None], schema: pa.Schema, at: Sequence[int]
) -> Rows:
    """The rows of a table.

    Args:
        table: has the columns.
        places: of the columns that a job names, by name; one without a place is null in each row.
        schema: of the whole data set, whose metadata names the classes of a ClassLabel.
        at: the place of each row.
    """
    names = class_names_of(schema)
    return Rows(
        {name: _column(table, place) for name, place in places.items()},
        at,
        {name: names[place[0]] for name, place in places.items() if place and place[0] in names},
    )


def _column(table: pa.Table | pa.RecordBatch, place: Place | None) -> pa.ChunkedArray | pa.Array:
    if place is None:
        return pa.nulls(len(table))
    column = table.column(place[0])
    for name in place[1:]:
        column = pc.struct_field(column, name)
    return column


def class_names_of(schema: pa.Schema) -> dict[str, Sequence[str]]:
    """The names of the classes of each ClassLabel, or list of them, as `datasets` of Hugging Face notes them."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = {name: _names_in(feature) for name, feature in features.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}
    return {name: names for name, names in found.items() if names}


def _names_in(feature: object) -> Sequence[str]:
    if isinstance(feature, list):
        return _names_in(feature[0]) if feature else ()
    if not isinstance(feature, Mapping):
        return ()
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    return list(names) if names else _names_in(feature.get("feature"))
