"""Columns that stand in the names of folders, as Hive and Spark write them: `year=2024/patient_id=7/notes.jsonl`."""

from __future__ import annotations

from urllib.parse import unquote

_NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_values(path: str, base: str) -> dict[str, str | None]:
    """The columns that the folders between `base` and a file name, with the file's values; None is a null.

    Keys and values are decoded as Spark encodes them. Raises ValueError if two folders name one column.

    Args:
        path: of the file.
        base: the folder below which folders count, as the file system writes it.
    """
    values: dict[str, str | None] = {}
    for folder in path.removeprefix(base).split("/")[:-1]:
        key, is_partition, value = map(unquote, folder.partition("="))
        if not key or not is_partition:
            continue
        if key in values:
            raise ValueError(f"two folders above {path} name the column {key!r}: rename one of them")
        values[key] = None if value == _NULL else value
    return values
