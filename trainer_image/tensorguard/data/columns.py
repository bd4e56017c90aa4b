"""Whether a data set has the columns that a job names, and of types that can play their roles.

In comes what is known of a data set without looking at a value: names, and for parquet and data sets in memory Arrow
types. `listing`, `files` and `read` ask; the errors name the manifest's field and the nearest column there is. What a
text file has in the place of names may be a record (a csv file without a header row, jsonl with people as keys), so
an error about such a file repeats none of it but a word that all but equals the one asked for.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from tensorguard.data.errors import DataError

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_ .-]{0,40}")


def check_columns(wanted: Iterable[str], present: list[str], path: str, where: str) -> None:
    """Raise DataError, beginning with `where`, for the first wanted column that is not there.

    The names in `present` are those of a schema, or positions: the error may list them.
    """
    for name in wanted:
        if name in present:
            continue
        near = difflib.get_close_matches(name, present, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, present[:12])) or 'none'}"
        raise DataError(f"{where}: {path} has no column {name!r}; {hint}")


def check_text_columns(wanted: Iterable[str], present: list[str], path: str, form: str, where: str) -> None:
    """As `check_columns`, for names found in a csv, tsv or jsonl file (`form`), which may be a record's values."""
    for name in wanted:
        if name in present:
            continue
        known = {other.lower(): other for other in present if _IDENTIFIER.fullmatch(other)}
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.75)
        if near:
            hint = f"did you mean {known[near[0]]!r}?"
        elif form == "jsonl":
            hint = "name it as the keys of the records are spelt"
        else:
            hint = f'it has {len(present)}; if the file has no header row, name columns by position ("0", "1")'
        raise DataError(f"{where}: {path} has no column {name!r}; {hint}")


def check_types(columns: Mapping[str, str], types: Mapping[str, Any], where: str) -> None:
    """Refuse a column whose type cannot play its role, whatever its values are."""
    for role, name in columns.items():
        kind = types[name]
        if not isinstance(kind, pa.DataType):
            continue  # Ray keeps odd Python objects under a type of its own: each record is then judged by itself
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        text = text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_null(kind)
        nested = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        scalar = text or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if role in ("messages", "tools"):
            fits, needs = text or nested, "a list of objects, or their JSON text"
        elif role == "label":
            fits, needs = scalar, "integers or strings"
        elif role == "user":
            fits, needs = scalar or not pa.types.is_nested(kind), "strings or integers"
        else:
            fits, needs = text, "strings"
        if not fits:
            raise DataError(f"{where}: column {name!r} ({role}) is of type {kind}; it needs {needs}")
