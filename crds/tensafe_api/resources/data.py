"""What is learned from: the private data set and its unit of privacy, and the set to evaluate on.

In comes the manifest's `spec.dataset` and `spec.evaluation`; the trainer's `data` package reads, tokenises and splits.
The unit and the lower bound of its number have no default: they are statements about people that only the author can
make, and every privacy figure rests on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pydantic import Field, create_model

from tensafe_api import tasks
from tensafe_api.resources.base import Block, Rule
from tensafe_api.resources.values import URI, OneLine, Positive, UnitCount

FileFormat = Literal["parquet", "jsonl", "csv", "tsv"]
FILE_FORMATS: tuple[str, ...] = get_args(FileFormat)
"""The names of all formats. The trainer has one class for each (`tensorguard.data.formats`)."""
LossOn = Literal["Completion", "Assistant", "All"]
UnitKind = Literal["Example", "User"]


def _on_names(holds: Callable[[Collection[str]], bool]) -> Callable[[Any], bool]:
    return lambda columns: holds(tasks.given_in(columns))


class _Columns(Block):
    """Which columns of the data set hold what.

    A decimal integer names a column by its position, from 0, in a csv or tsv file without a header.
    """

    rules: ClassVar[tuple[Rule, ...]] = tuple(
        Rule(rule.cel, rule.message, _on_names(rule.holds), rule.path) for rule in tasks.columns_rules()
    )

    def given(self) -> dict[str, str]:
        """The names of the data set's columns, by role."""
        return {role: name for role in tasks.COLUMNS if (name := getattr(self, role)) is not None}


if TYPE_CHECKING:
    Columns = _Columns
else:
    Columns = create_model(
        "Columns",
        __base__=_Columns,
        __doc__=_Columns.__doc__,
        __module__=__name__,
        **{name: (OneLine | None, Field(None, description=each.description)) for name, each in tasks.COLUMNS.items()},
    )
    """The fields are the columns of `tensafe_api.tasks`."""


class Unit(Block):
    """Whose presence the privacy claim hides."""

    kind: UnitKind = Field(
        description="Example: one record. User: all records of one value of `column`; choose it wherever a person can "
        "have several records."
    )
    column: OneLine | None = Field(None, description="Column of the user's id; for User only, and required there.")
    max_examples_per_unit: Positive | None = Field(
        None,
        description="Most records of one user that are trained on; for User only, default 8 there. It bounds the "
        "work that one user causes, and is applied once, when the data is read.",
    )
    at_least: UnitCount = Field(
        description="A public lower bound of the number of units. The true number is private. Too high a bound makes "
        "the batches smaller than said; far too low a one makes them larger and slower."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.kind == 'User') == has(self.column)",
            "unit.column belongs to User: write the column of the user's id there, and leave it out for Example",
            lambda unit: (unit.kind == "User") == (unit.column is not None),
            ".column",
        ),
        Rule(
            "self.kind == 'User' || !has(self.maxExamplesPerUnit)",
            "unit.maxExamplesPerUnit belongs to User: leave it out for Example",
            lambda unit: unit.kind == "User" or unit.max_examples_per_unit is None,
            ".maxExamplesPerUnit",
        ),
    )


_LABELLED = tasks.labelled_columns()


def _loss_fits(dataset: Dataset) -> bool:
    given = tasks.given_in(dataset.columns)
    if dataset.loss_on == "Completion":
        return "prompt" in given
    if dataset.loss_on == "Assistant":
        return "messages" in given
    return dataset.loss_on is None or not given & set(_LABELLED)


class Dataset(Block):
    """The private data."""

    uri: URI = Field(
        description="Where the data lies: a file, a directory or a pattern, as s3://, gs://, file://, "
        "pvc://claim/path, hf:// or a path. Relative paths are relative to the manifest, and for local runs only."
    )
    format: FileFormat | None = Field(None, description="Form of the files; default: what their names tell.")
    columns: Columns = Field(description="Which columns hold what.")
    loss_on: LossOn | None = Field(
        None,
        description="Which tokens are learned: those of the completion, of the assistant's turns, or all; default: "
        "Completion for prompt and completion, Assistant for messages, All for text. Not for classification.",
    )
    over_length: Literal["Truncate", "Drop"] = Field(
        "Truncate",
        description="What happens to a record of more than training.maxLength tokens. It is never an error, since an "
        "error would tell of one record.",
    )
    unit: Unit = Field(description="Whose presence the privacy claim hides, and how many there are at least.")
    lineage: OneLine | None = Field(
        None,
        description="A declared name for the same people, over all data sets that hold them; written into ledger and "
        "statement; default: none.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.lossOn) || (self.lossOn == 'Completion' ? has(self.columns.prompt) : "
            f"self.lossOn == 'Assistant' ? has(self.columns.messages) : "
            f"{' && '.join(f'!has(self.columns.{name})' for name in _LABELLED)})",
            "dataset.lossOn does not fit dataset.columns: write Completion with prompt and completion, Assistant with "
            "messages, All with any text, and leave it out for labels",
            _loss_fits,
            ".lossOn",
        ),
    )


class Evaluation(Block):
    """Data to measure the model on while it is trained. It has the columns of the data set."""

    uri: URI = Field(description="Where the data lies, written as dataset.uri is.")
    format: FileFormat | None = Field(None, description="Form of the files; default: what their names tell.")
    visibility: Literal["Public", "Private"] = Field(
        description="Your attestation. Public: results are shown in the status. Private: they are kept from it, and "
        "the statement says that a private set was evaluated on."
    )
    every_steps: Positive | None = Field(
        None,
        description="Steps from one evaluation to the next; default: checkpoint.everySteps. The last step always is.",
    )
