"""Whether a data set has the columns that a job names, with types that fit their roles.

In comes what is known of a data set without reading a value: column names, and for parquet and data sets in memory
Arrow types. The errors name the manifest's field and the nearest column that exists.

A text file may hold a record in the place of column names (a csv file without a header row, jsonl whose keys are data),
and so may a data set in memory that was read from one. So an error about such data repeats none of their names, but for
one that is almost equal to the wanted name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tensafe_api.tasks import COLUMNS, Content
from tensorguard.data.errors import DataError

_NEEDS: dict[Content, str] = {
    "text": "strings",
    "label": "integers or strings",
    "conversation": "a list of objects, or their JSON text",
    "words": "a list of strings, or their JSON text",
    "word labels": "a list of integers or strings, or their JSON text",
    "image": "bytes, objects with a field 'bytes', or base64 strings",
}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_ .-]{0,40}")


@dataclass(frozen=True)
class FileColumns:
    """The columns of one file.

    Attributes:
        names: of the columns, or their positions ("0", "1").
        types: Arrow types by name; None where the format has none.
        advice: the fix in an error about a missing column; None if the names come from a schema, which errors may list.
        fixed: whether all records have these columns. If False, each record names its own, and an optional column may
            be in none that was seen.
    """

    names: Sequence[str]
    types: Mapping[str, pa.DataType] | None = None
    advice: str | None = None
    fixed: bool = True

    def check(self, wanted: Iterable[str], path: str, where: str) -> None:
        """Raise DataError, starting with `where`, for a wanted column that is missing, or there several times."""
        wanted = list(wanted)
        for name in wanted:
            if self.names.count(name) > 1:
                raise DataError(f"{where}: {path} has several columns {name!r}: rename all but one")
        if self.advice is None:
            check_columns(wanted, self.names, path, where)
        else:
            check_text_columns(wanted, self.names, path, self.advice, where)


def check_columns(wanted: Iterable[str], present: Sequence[str], path: str, where: str) -> None:
    """Raise DataError, starting with `where`, for the first wanted column that is missing.

    The names in `present` are those of a schema, or positions: the error may list them.
    """
    for name in wanted:
        if name in present:
            continue
        near = difflib.get_close_matches(name, present, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, present[:12])) or 'none'}"
        raise DataError(f"{where}: {path} has no column {name!r}; {hint}")


def check_text_columns(wanted: Iterable[str], present: Sequence[str], path: str, advice: str, where: str) -> None:
    """As `check_columns`, for names that may be a record's values."""
    for name in wanted:
        if name in present:
            continue
        known = {other.lower(): other for other in present if _IDENTIFIER.fullmatch(other)}
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.75)
        if any(other.strip(' "') == name for other in present):
            advice = "there are spaces or quotes around this name in the data: remove them"
        hint = f"did you mean {known[near[0]]!r}?" if near else advice
        raise DataError(f"{where}: {path} has no column {name!r}; {hint}")


def check_types(columns: Mapping[str, str], types: Mapping[str, Any], where: str) -> None:
    """Raise DataError, starting with `where`, for a column whose type cannot fit its role, whatever its values are."""
    for role, name in columns.items():
        kind = types[name]
        if not isinstance(kind, pa.DataType):
            continue  # Ray gives Python objects a type that is not Arrow's: then each record is checked by itself
        kind = _decoded(kind)
        element = _element(kind)
        if role == "user":
            fits, needs = _is_scalar(kind) or not pa.types.is_nested(kind), "strings or integers"
        else:
            content = COLUMNS[role].content
            fits = {
                "text": _is_text(kind),
                "label": _is_scalar(kind),
                "conversation": _is_text(kind) or element is not None,
                "words": _is_text(kind) or (element is not None and _is_text(element)),
                "word labels": _is_text(kind) or (element is not None and _is_scalar(element)),
                "image": _is_text(kind) or _has_bytes(kind),
            }[content]
            needs = _NEEDS[content]
        if not fits:
            raise DataError(f"{where}: column {name!r} ({role}) is of type {_named(kind)}; it needs {needs}")


def _named(kind: Any) -> str:
    """The name of a type without the names of its fields, which may be values of a record."""
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_union(kind):
        return "union"
    if pa.types.is_map(kind):
        return "map"
    element = _element(kind)
    return str(kind) if element is None else f"list<{_named(element)}>"


def _decoded(kind: Any) -> Any:
    """The type of the values that a dictionary or an extension type holds. Arrays, as Ray has them, count as lists."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.list_(kind.value_type) if hasattr(kind, "value_type") else kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _element(kind: Any) -> Any:
    """The type of a list's elements; None for a type that is no list."""
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return _decoded(kind.value_type) if is_list else None


def _has_bytes(kind: Any) -> bool:
    """Whether it is the type of objects with a field `bytes`."""
    return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and _is_text(kind.field("bytes").type))


def _is_text(kind: Any) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_null(kind))


def _is_scalar(kind: Any) -> bool:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return _is_text(kind) or number
