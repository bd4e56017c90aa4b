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
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tensafe_api.tasks import COLUMNS, Content
from tensorguard.data.errors import DataError

_NEEDS: dict[Content, str] = {
    "text": "strings",
    "label": "integers, booleans or strings",
    "conversation": "a list of objects, or their JSON text",
    "tools": "a list of objects, or their JSON text",
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
        objects: whether a value can be an object, so that a path such as `user.id` names a field of one.
    """

    names: Sequence[str]
    types: Mapping[str, pa.DataType] | None = None
    advice: str | None = None
    fixed: bool = True
    objects: bool = True

    def find(self, name: str) -> tuple[str, ...] | None:
        """The column that a job calls `name`, and the fields of a path into it; None where there is none."""
        if (found := same_name(name, self.names)) is not None:
            return (found,)
        head, dot, rest = name.partition(".")
        if not (self.objects and dot and (top := same_name(head, self.names)) is not None):
            return None
        fields = tuple(rest.split("."))
        return (top, *fields) if self.types is None or _nested(self.types[top], fields) is not None else None

    def type_of(self, name: str) -> pa.DataType | None:
        """The type of the column that a job calls `name`; None where it is not known."""
        place = self.find(name)
        return None if self.types is None or place is None else _nested(self.types[place[0]], place[1:])

    def check(self, wanted: Iterable[str], path: str, where: str) -> None:
        """Raise DataError, starting with `where`, for a wanted column that is missing, or there several times."""
        missing = []
        for name in wanted:
            if sum(form_of(other) == form_of(name) for other in self.names) > 1:
                raise DataError(f"{where}: {path} has several columns {name!r}: rename all but one")
            if self.find(name) is None:
                missing.append(name)
        if self.advice is None:
            check_columns(missing, self.names, path, where)
        else:
            check_text_columns(missing, self.names, path, self.advice, where)


@lru_cache(maxsize=4096)
def form_of(name: str) -> str:
    """A column's name in the form in which names are compared: NFC, trimmed, with single spaces, without a byte order
    mark or other invisible characters.
    """
    text = "".join(each for each in name if each.isspace() or unicodedata.category(each) not in ("Cc", "Cf"))
    return " ".join(unicodedata.normalize("NFC", text).split())


def same_name(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is `name`, or looks the same; None where none does."""
    if name in names:
        return name
    form = form_of(name)
    return next((other for other in names if form_of(other) == form), None)


def value_in(record: Mapping[str, Any], name: str) -> Any:
    """A record's value of the column `name`, which may be a path into objects; None where it has none."""
    if name in record:
        return record[name]
    if (found := same_name(name, record)) is not None:
        return record[found]
    head, dot, rest = name.partition(".")
    inner = value_in(record, head) if dot else None
    if inner is None or isinstance(inner, Mapping):
        return None if inner is None else value_in(inner, rest)
    return [inner]  # the path ends before its last field: no text, class or id is a list


def paths_in(record: Mapping[str, Any], wanted: Iterable[str]) -> list[str]:
    """Those of the names that are no column of a record, but a path to a value in its objects."""
    return [name for name in wanted if same_name(name, record) is None and value_in(record, name) is not None]


def _nested(kind: pa.DataType, fields: Sequence[str]) -> pa.DataType | None:
    """The type of a field of objects of this type; None where they have none."""
    for name in fields:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


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


def check_types(columns: Mapping[str, str], types: Mapping[str, Any], where: str, path: str = "") -> None:
    """Raise DataError, starting with `where`, for a column whose type cannot fit its role, whatever its values are.

    `path`: the file, if there is one.
    """
    for role, name in columns.items():
        kind = types.get(name)
        if not isinstance(kind, pa.DataType):
            continue  # Ray gives Python objects a type that is not Arrow's: then each record is checked by itself
        kind = _decoded(kind)
        element = _element(kind)
        if role == "user":
            fits, needs = _is_id(kind), "integers, strings, booleans, whole decimals or float64, or UUIDs"
        else:
            content = COLUMNS[role].content
            fits = {
                "text": _is_text(kind),
                "label": _is_scalar(kind),
                "conversation": _is_text(kind) or element is not None,
                "tools": _is_text(kind) or element is not None,
                "words": _is_text(kind) or (element is not None and _is_text(element)),
                "word labels": _is_text(kind) or (element is not None and _is_scalar(element)),
                "image": _is_text(kind) or _has_bytes(kind),
            }[content]
            needs = _NEEDS[content]
        if not fits:
            of = f" of {path}" if path else ""
            raise DataError(f"{where}: column {name!r} ({role}){of} is of type {type_name(kind)}; it needs {needs}")


def type_name(kind: Any) -> str:
    """The name of a type without the names of its fields, which may be values of a record."""
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_union(kind):
        return "union"
    if pa.types.is_map(kind):
        return "map"
    element = _element(kind)
    return str(kind) if element is None else f"list<{type_name(element)}>"


def _decoded(kind: Any) -> Any:
    """The type of the values that a dictionary or an extension type holds. Arrays, as Ray has them, count as lists."""
    if isinstance(kind, pa.UuidType):
        return pa.string()
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
    return _is_text(kind) or number or pa.types.is_decimal(kind)


def _is_id(kind: Any) -> bool:
    """Whether values of this type may be ids. Each of them is checked when it is read (`values.id_of`)."""
    short = pa.types.is_float16(kind) or pa.types.is_float32(kind)
    return (_is_scalar(kind) and not short) or pa.types.is_fixed_size_binary(kind)
