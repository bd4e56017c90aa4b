"""The result of an inspection: all that the text, the page and the JSON show. All of it is private.

`tensafe inspect -o json` prints `Inspection.to_json()`: the attributes of the classes below, with names in camel case
(`recordsWithoutId`). Its keys are:

- `notice`, `job`, `complete`, `records`, `usable`, `leftOut`, `unusable` (`[{"kind", "count", "first"}]`),
  `recordsWithoutId`, `units`, `unit`, `recordsPerUnit`, `trained`, `labels` (`{class: count}`), `otherLabels`,
  `lengths`, `duplicates`, `ids`, `reading`, `files`, `evaluation`, `suggestions`, `refusals`, `examples`.
- A distribution (`recordsPerUnit`, `lengths.tokens`) has `min`, `p25`, `median`, `p75`, `p90`, `p99`, `max`, `mean` and
  `histogram` (`[{"first", "last", "count"}]`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic.alias_generators import to_camel

from tensorguard.data.unusable import Unusable
from tensorguard.inspection.distribution import Distribution
from tensorguard.inspection.ids import LookAlikes

NOTICE = "Private: this is not covered by the privacy claim: do not publish it."


@dataclass(frozen=True)
class UnusableRecords:
    """The records of one kind that cannot be used: how many, and the place of the first in words."""

    kind: Unusable
    count: int
    first: str


@dataclass(frozen=True)
class Lengths:
    """Records in tokens, before they are cut.

    Attributes:
        max_length: of the job.
        tokens: the distribution of the lengths, which are counted up to `limit`; None if there is no record.
        cut: records that are longer than max_length: they are cut or left out.
        prompts_cut: of these, the ones whose prompt is cut, so that something of the completion fits; None without
            prompts.
    """

    max_length: int
    tokens: Distribution | None
    limit: int
    cut: int
    prompts_cut: int | None


@dataclass(frozen=True)
class OtherLabels:
    """Labels that are no class of the job.

    Attributes:
        records: how many records (for tags: words) have one.
        distinct: how many different ones there are.
        largest: the largest of them if all are whole numbers from 0, else None.
        texts: how often each occurs, where they may be shown.
    """

    records: int
    distinct: int
    largest: int | None
    texts: Mapping[str, int] | None


@dataclass(frozen=True)
class Duplicates:
    """Equal records: how many different ones stand several times, and how many `copies` there are beside them."""

    records: int
    copies: int


@dataclass(frozen=True)
class Ids:
    """The ids of users: how many different ones, and those that look alike."""

    distinct: int
    alike: tuple[LookAlikes, ...]


@dataclass(frozen=True)
class Column:
    """A column of a file: its type where the format has types, and its role where the job uses it."""

    name: str
    type: str | None
    role: str | None


@dataclass(frozen=True)
class File:
    """A file of the data set.

    Attributes:
        encoding: of a text file; None for another.
        columns: those that may be shown.
        other_columns: how many more names were seen, which may be content of records.
        same_records_as: an earlier file that holds the same records, in any order.
    """

    path: str
    format: str
    bytes: int
    records: int
    encoding: str | None
    columns: tuple[Column, ...]
    other_columns: int
    same_records_as: str | None


@dataclass(frozen=True)
class Evaluation:
    """The evaluation set.

    Attributes:
        reading: which files are read, and which ones are left out.
        compared: its different records, which are compared with the data set; None if it is not declared public.
        in_dataset: how many of these are in the data set too.
    """

    records: int
    usable: int
    left_out: int
    unusable: tuple[UnusableRecords, ...]
    reading: str
    compared: int | None
    in_dataset: int | None


@dataclass(frozen=True)
class Suggestion:
    """A value that fits the data better than that of the manifest."""

    field: str
    now: int
    value: int
    reason: str


@dataclass(frozen=True)
class Part:
    """A piece of a record as the model reads it, and whether its tokens are learned."""

    text: str
    learned: bool


@dataclass(frozen=True)
class Example:
    """A record as the model reads it, with its label if it has one."""

    parts: tuple[Part, ...]
    label: str | None


@dataclass(frozen=True)
class Unit:
    """The unit of privacy, as the completed manifest has it."""

    kind: str
    column: str | None
    max_examples_per_unit: int | None
    missing: str | None


@dataclass(frozen=True)
class Inspection:
    """What a job would train.

    Attributes:
        notice: that all of this is private.
        job: the name of the job.
        complete: whether everything was read. If not, the figures are those of what was.
        records: all that were read.
        usable: the records that can be trained.
        left_out: records that are longer than maxLength, where `dataset.overLength` is Drop.
        unusable: the others, by kind. A record that is unusable for two reasons is counted twice.
        records_without_id: None where the unit is not a user. Each is a unit with `unit.missing: OwnUnit`, and unusable
            otherwise.
        units: the units of the usable records.
        records_per_unit: None if there is no unit.
        trained: the usable records that maxExamplesPerUnit keeps.
        labels: the number of usable records (for tags: of words) by class; None for a task without classes.
        other_labels: None for a task without classes.
        lengths: None for images.
        ids: None where the unit is not a user.
        reading: which files are read, and which ones are left out.
        files: empty for data in memory.
        evaluation: None for a job without one, or if it cannot be read.
        suggestions: values that fit the data better.
        refusals: why a run would be refused before it spends anything. A run ends with the first.
        examples: some records as the model reads them; None where they may not be shown.
    """

    job: str
    complete: bool
    records: int
    usable: int
    left_out: int
    unusable: tuple[UnusableRecords, ...]
    records_without_id: int | None
    units: int
    unit: Unit
    records_per_unit: Distribution | None
    trained: int
    labels: Mapping[str, int] | None
    other_labels: OtherLabels | None
    lengths: Lengths | None
    duplicates: Duplicates
    ids: Ids | None
    reading: str
    files: tuple[File, ...]
    evaluation: Evaluation | None
    suggestions: tuple[Suggestion, ...]
    refusals: tuple[str, ...]
    examples: tuple[Example, ...] | None
    notice: str = NOTICE

    def to_json(self) -> dict[str, object]:
        """The object that `tensafe inspect -o json` prints."""
        found = cast(dict[str, object], _json(self))
        return {"notice": found.pop("notice"), **found}

    def text(self) -> str:
        """The inspection as text of several lines."""
        from tensorguard.inspection.text import text_of

        return text_of(self)

    def html(self) -> str:
        """The inspection as one HTML page, which needs nothing else."""
        from tensorguard.inspection.page import render_page

        return render_page(self)


def _json(value: Any) -> Any:
    """A value as JSON has it. The names of attributes are in camel case, the keys of mappings are kept."""
    if dataclasses.is_dataclass(value):
        return {to_camel(field.name): _json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: _json(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_json(each) for each in value]
    return value.value if isinstance(value, enum.Enum) else value
