"""The records of a data set in memory, as dicts from column to value.

In comes a list, a torch data set or a pandas DataFrame. Its records are dicts, tuples or rows. Out come dicts: a tuple
has its positions as columns ("0", "1"), as a csv file without a header row has, and a named tuple its fields. Nothing
here needs Ray: the Python API reads the names of the columns before a training starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorguard.data.errors import DataError

MEMORY_KINDS = "a list, a pandas DataFrame, or a Ray, Hugging Face or torch data set, whose records are dicts or tuples"


def is_data_frame(source: Any) -> bool:
    """Whether `source` is a pandas DataFrame, or of a class derived from it."""
    return any(
        each.__name__ == "DataFrame" and each.__module__.partition(".")[0] == "pandas" for each in type(source).__mro__
    )


def is_data_loader(source: Any) -> bool:
    """Whether `source` is a torch DataLoader: it yields batches, and each of them would be taken for a record."""
    return any(
        each.__name__ == "DataLoader" and each.__module__.startswith("torch.utils.data")
        for each in type(source).__mro__
    )


def fields_of(record: Any) -> dict[str, Any] | None:
    """One record by column; None for anything but a dict, a tuple or a list."""
    if isinstance(record, Mapping):
        return dict(record)
    if isinstance(record, tuple | list):
        names = getattr(record, "_fields", None) or map(str, range(len(record)))
        return dict(zip(names, record))
    return None


def records_of(source: Any, where: str) -> list[dict[str, Any]]:
    """The records of a list, a DataFrame, or a torch data set with or without a length.

    Items of another type are dropped, unless all are.

    Raises:
        DataError: `source` is of another type, or no item is a record.
    """
    if is_data_loader(source):
        raise DataError(f"{where}: is a DataLoader, which makes batches: pass its data set")
    if is_data_frame(source):
        rows = source.rename(columns=str).to_dict("records")
        return [{name: _cell(value) for name, value in row.items()} for row in rows]
    if isinstance(source, list | tuple):
        items = list(source)
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        items = [source[i] for i in range(len(source))]
    elif hasattr(source, "__iter__"):
        items = list(source)
    else:
        raise DataError(f"{where}: must be {MEMORY_KINDS}, not {type(source).__name__}")
    records = [record for record in map(fields_of, items) if record is not None]
    if items and not records:
        raise DataError(f"{where}: must be {MEMORY_KINDS}; its items are neither")
    return records


def _cell(value: Any) -> Any:
    """A value of a DataFrame, with a whole number as an integer.

    pandas chooses the type of a column from all its rows: whole numbers are floats where one row has no value or a
    fraction. Each value is made the same whatever the type of its column is, so that no record changes another one.
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value
