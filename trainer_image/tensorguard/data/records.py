"""The records of a list or torch data set in memory, as dicts from column to value.

In comes a list or a torch data set, whose records are dicts or tuples. Out come dicts: a tuple has its positions as
columns ("0", "1"), as a csv file without a header row has, and a named tuple its fields. Nothing here needs Ray: the
Python API reads the names of the columns before a training starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorguard.data.errors import DataError

MEMORY_KINDS = (
    "a list, a DataFrame of pandas or polars, an Arrow table, or a Ray, Hugging Face or torch data set, whose records "
    "are dicts or tuples"
)
ADVICE = "write the names that its records have, as in columns={'text': 'note', 'label': 'department'}"
EMPTY = "it is empty: pass at least one record"


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
        return {str(name): value for name, value in record.items()}
    if isinstance(record, tuple | list):
        names = getattr(record, "_fields", None) or map(str, range(len(record)))
        return dict(zip(names, record))
    return None


def records_of(source: Any, where: str) -> list[dict[str, Any]]:
    """The records of a list, or of a torch data set with or without a length.

    Raises:
        DataError: `source` is of another type, or an item is no record.
    """
    if is_data_loader(source):
        raise DataError(f"{where}: is a DataLoader, which makes batches: pass its data set")
    if isinstance(source, list | tuple):
        items = list(source)
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        items = [source[i] for i in range(len(source))]
    elif hasattr(source, "__iter__"):
        items = list(source)
    else:
        raise DataError(f"{where}: must be {MEMORY_KINDS}, not {type(source).__name__}")
    records = []
    for i, item in enumerate(items):
        record = fields_of(item)
        if record is None:
            raise DataError(f"{where}: must be {MEMORY_KINDS}; the item at index {i} is of type {type(item).__name__}")
        records.append(record)
    return records
