"""From rows of typed values to the raw table of a data set: one form, whatever the source is.

In come `Rows`, as a format or a data set in memory yields them: the columns that a job names, with the values' own
types. Out comes a table with one column for each role, converted by the rules of `values`, and three more: `fault`, why
the record cannot be used; and `file` and `at`, its place. `partition` consumes it. So two sources that hold the same
table give the same raw table, and no record changes the type of another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from tensafe_api.resources.job import Spec
from tensafe_api.tasks import COLUMNS, Content
from tensorguard.data import values
from tensorguard.data.conversations import NotAConversation, messages_of, tools_of
from tensorguard.data.errors import DataError
from tensorguard.data.recipe import columns_of
from tensorguard.data.unusable import Unusable
from tensorguard.data.values import NotAnId, UnusableValue

Column: TypeAlias = Sequence[Any] | pa.ChunkedArray
ID_TYPES = "an integer, a text, a boolean, a whole decimal, a whole float64 below 2^53, or a UUID"
EXTRA_COLUMNS = ("fault", "file", "at")
"""The columns of a raw table that are no roles."""
NULLS = frozenset(["\\N"])
"""What means no value in a file without types, beside an empty text: databases write it, and no text is it."""
NO_PLACE = -1
"""The place of a record that is not known."""


@dataclass(frozen=True)
class Wanted:
    """What a job reads of each record.

    Attributes:
        columns: role -> column name; the role of the id of a user is "user".
        named_classes: whether the job names its classes. Then the names of a Hugging Face ClassLabel count, and its
            numbers do not.
        nulls: the texts that mean no value in a file without types.
        where: the manifest's field that errors name, such as "spec.dataset".
    """

    columns: Mapping[str, str]
    named_classes: bool = False
    nulls: frozenset[str] = NULLS
    where: str = "spec.dataset"

    @classmethod
    def of(cls, spec: Spec) -> Wanted:
        """What a job reads of its private data set."""
        return cls(columns_of(spec), bool(spec.model.label_names), NULLS | set(spec.dataset.null_values))

    @classmethod
    def for_evaluation(cls, spec: Spec) -> Wanted:
        """What a job reads of its evaluation set: the same, without the id of a user."""
        columns = {role: name for role, name in columns_of(spec).items() if role != "user"}
        return cls(columns, bool(spec.model.label_names), NULLS | set(spec.dataset.null_values), "spec.evaluation")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, each once."""
        return tuple(dict.fromkeys(self.columns.values()))


class Rows(NamedTuple):
    """Some rows of a data set.

    Attributes:
        columns: by name; equally long.
        at: the place of each row: what the format's `place` makes a text of.
        class_names: by column, the names of the classes of a Hugging Face ClassLabel.
    """

    columns: Mapping[str, Column]
    at: Sequence[int]
    class_names: Mapping[str, Sequence[str]] = {}


def raw_table(
    rows: Rows,
    wanted: Wanted,
    *,
    file: str = "",
    place: Callable[[int], str] = str,
) -> pa.Table:
    """The raw table of some rows.

    Args:
        rows: with the wanted columns.
        wanted: what the job reads.
        file: the rows' file; empty for data in memory.
        place: of a row, from its `at`, for an error: "line 7".

    Raises DataError for an id that is no scalar.
    """
    faults: list[str | None] = [None] * len(rows.at)
    table: dict[str, pa.Array] = {}
    for role, name in wanted.columns.items():
        found = python_values(rows.columns[name])
        if role == "user":
            table[role] = pa.array(_ids(found, rows, name, wanted, file, place), pa.large_string())
            continue
        if wanted.named_classes and name in rows.class_names:
            found = [_named(value, rows.class_names[name]) for value in found]
        rule, kind = _RULES[COLUMNS[role].content]
        table[role] = pa.array(_converted(rule, found, faults), kind)
    table["fault"] = pa.array(faults, pa.string())
    table["file"] = pa.array([file] * len(faults), pa.string())
    table["at"] = pa.array(rows.at, pa.int64())
    return pa.table(table)


def python_values(column: Column) -> list[Any]:
    """A column's values with Python's types. Text that is not UTF-8 is as `values.decoded` keeps it."""
    if not isinstance(column, pa.ChunkedArray | pa.Array):
        return list(column)
    if isinstance(column.type, pa.BaseExtensionType):  # of UUIDs, and Ray's of arrays and of Python objects
        return [_python_value(scalar) for scalar in column]
    try:
        found: list[Any] = column.to_pylist()
        return found
    except (ValueError, OverflowError):  # text that is not UTF-8, or a date out of range
        return [_python_value(scalar) for scalar in column]


def _python_value(scalar: pa.Scalar) -> Any:
    try:
        return values.python_value(scalar.as_py())
    except UnicodeDecodeError:
        return _undecoded(scalar)
    except (ValueError, OverflowError, RecursionError):
        return None


def _undecoded(scalar: pa.Scalar) -> Any:
    """A text that is not UTF-8; of lists and objects that hold one, the whole value is this text."""
    while isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    content = scalar.as_buffer().to_pybytes() if hasattr(scalar, "as_buffer") else b"\xff"
    return values.decoded(content)


def _converted(rule: Callable[[Any], Any], found: Sequence[Any], faults: list[str | None]) -> list[Any]:
    """The converted values, None for those that cannot be used; why is written into `faults`."""
    converted: list[Any] = []
    for i, value in enumerate(found):
        try:
            converted.append(rule(value))
        except UnusableValue as error:
            converted.append(None)
            faults[i] = faults[i] or error.kind.value
        except (RecursionError, ValueError):  # nested or long beyond what Python converts
            converted.append(None)
            faults[i] = faults[i] or Unusable.TOO_LARGE.value
    return converted


def _ids(
    found: Sequence[Any], rows: Rows, name: str, wanted: Wanted, file: str, place: Callable[[int], str]
) -> list[str | None]:
    ids = []
    for at, value in zip(rows.at, found):
        try:
            ids.append(values.id_of(value))
        except (NotAnId, RecursionError) as error:
            somewhere = ", ".join(part for part in (file, place(at) if at != NO_PLACE else "") if part) or "in memory"
            where = f"{wanted.where}.unit.column" if wanted.where.startswith("spec.") else wanted.where
            what = error if isinstance(error, NotAnId) else "an object"
            raise DataError(
                f"{where}: {name!r} holds {what} ({somewhere}): an id is {ID_TYPES}; convert the column, or name a "
                f"field of an object by its path, such as {name}.id"
            ) from None
    return ids


def _named(value: Any, names: Sequence[str]) -> Any:
    """A class, or the classes of words, with the name in place of a ClassLabel's number."""
    value = values.python_value(value)
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return names[value] if 0 <= value < len(names) else None
    return value


def _conversation(rule: Callable[[Any], Any], value: Any) -> str | None:
    try:
        found = rule(values.python_value(value))
    except (NotAConversation, RecursionError):
        raise UnusableValue(Unusable.NO_CONVERSATION) from None
    return None if found is None else values.text_of(json.dumps(found, ensure_ascii=False))


def _words(value: Any) -> str:
    return json.dumps(values.words_of(value), ensure_ascii=False)


def _tags(value: Any) -> str:
    return json.dumps(values.tags_of(value), ensure_ascii=False)


_RULES: dict[Content, tuple[Callable[[Any], Any], pa.DataType]] = {
    "text": (values.text_of, pa.large_string()),
    "label": (values.label_of, pa.large_string()),
    "conversation": (partial(_conversation, messages_of), pa.large_string()),
    "tools": (partial(_conversation, tools_of), pa.large_string()),
    "words": (_words, pa.large_string()),
    "word labels": (_tags, pa.large_string()),
    "image": (values.image_of, pa.large_binary()),
}
"""By content of a column: its rule, and the type of the result. Lists and conversations are JSON text."""
