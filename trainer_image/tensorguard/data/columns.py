"""Whether a data set has the columns that a job names, and of types that can play their roles.

In comes what is known of a data set without looking at a value: names, and for parquet and data sets in memory Arrow
types. `listing` and `read` ask; the errors name the manifest's field and the nearest column there is.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from tensorguard.data.errors import DataError


def check_columns(wanted: Iterable[str], present: list[str], path: str, where: str) -> None:
    """Raise DataError, beginning with `where`, for the first wanted column that is not there."""
    for name in wanted:
        if name in present:
            continue
        near = difflib.get_close_matches(name, present, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, present[:12])) or 'none'}"
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
