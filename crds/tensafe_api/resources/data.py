"""The data of a job: the private data set with its unit of privacy, and the data set for evaluation.

The trainer's `data` package reads, tokenises and splits the data of `spec.dataset` and `spec.evaluation`. The unit and
the lower bound of the number of units have no default. Every privacy figure rests on them, and only the author of a job
can state them: they are facts about the people in the data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, create_model

from tensafe_api import tasks
from tensafe_api.resources.base import Block, Rule
from tensafe_api.resources.numeric import Positive, UnitCount
from tensafe_api.resources.strings import URI, OneLine

FileFormat = Literal["parquet", "jsonl", "csv", "tsv"]
FILE_FORMATS: tuple[str, ...] = get_args(FileFormat)
"""The names of all formats. The trainer has one class for each (`tensorguard.data.formats`)."""
LossOn = Literal["Completion", "Assistant", "All"]
UnitKind = Literal["Example", "User"]
NullText = Annotated[str, Field(strict=True, min_length=1, max_length=64)]


def _on_names(holds: Callable[[Collection[str]], bool]) -> Callable[[Any], bool]:
    return lambda columns: holds(tasks.given_in(columns))


class _Columns(Block):
    """The columns of the data set that hold the records.

    In a csv or tsv file without a header, a decimal integer names a column by its position, from 0.
    """

    rules: ClassVar[tuple[Rule, ...]] = tuple(
        Rule(rule.cel, rule.message, _on_names(rule.holds), rule.path, rule.id) for rule in tasks.columns_rules()
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
    """The unit of privacy: what epsilon protects."""

    kind: UnitKind = Field(
        description="Example: epsilon protects one record. User: all records with the same value of "
        "`column`. Choose User if a person can have several records."
    )
    column: OneLine | None = Field(None, description="Column of the user id. Required for User, refused for Example.")
    max_examples_per_unit: Positive | None = Field(
        None,
        description="Maximum number of records of one user, applied when the data is read. Refused for Example. "
        "Default for User: 8.",
    )
    missing: Literal["Refuse", "OwnUnit"] | None = Field(
        None,
        description="What becomes of a record without a user id. Refuse: the job ends before it spends anything. "
        "OwnUnit: it is a unit by itself, as the statement records. Refused for Example. Default for User: Refuse.",
    )
    at_least: UnitCount = Field(
        description="A public lower bound of the number of units, which is private. Above the true number, batches are "
        "smaller than expectedBatchSize; far below it, they are larger and steps take longer."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.kind == 'User') == has(self.column)",
            "unit.column is required for User and refused for Example: write the column of the user id, or remove it",
            lambda unit: (unit.kind == "User") == (unit.column is not None),
            ".column",
            id="UnitColumnOfUsers",
        ),
        Rule(
            "self.kind == 'User' || !has(self.maxExamplesPerUnit)",
            "unit.maxExamplesPerUnit is only valid for User: remove it for Example",
            lambda unit: unit.kind == "User" or unit.max_examples_per_unit is None,
            ".maxExamplesPerUnit",
            id="MaxExamplesOfUsers",
        ),
        Rule(
            "self.kind == 'User' || !has(self.missing)",
            "unit.missing is only valid for User: remove it for Example",
            lambda unit: unit.kind == "User" or unit.missing is None,
            ".missing",
            id="MissingOfUsers",
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


def _has_images(dataset: Dataset) -> bool:
    return bool(tasks.given_in(dataset.columns) & set(tasks.image_columns()))


class Dataset(Block):
    """The private training data and its unit of privacy."""

    uri: URI = Field(
        description="Location of the data: a file, a directory or a pattern, as an s3://, gs://, file://, "
        "pvc://NAME/path or hf:// URI, or a path. A relative path, for local runs only, is relative "
        "to the manifest. A directory leaves out names that start with a dot or an underscore; a "
        "pattern includes them."
    )
    format: FileFormat | None = Field(
        None, description="Format of the files; text is UTF-8. Default: from the file names."
    )
    columns: Columns = Field(description="The columns that hold the records.")
    loss_on: LossOn | None = Field(
        None,
        description="Tokens that the loss counts: those of the completion, those of the assistant's messages, or "
        "all. Refused for records with labels. Default: Completion for prompt and completion, "
        "Assistant for messages, All for text.",
    )
    over_length: Literal["Truncate", "Drop"] | None = Field(
        None,
        description="Cut off or leave out a record of more than training.maxLength tokens. It is never an error, "
        "which would reveal something about a record. Refused for images. Default for text: Truncate.",
    )
    unusable: Literal["Refuse", "Skip"] | None = Field(
        None,
        description="What becomes of a record that cannot be used, such as one without text. Refuse: the job ends "
        "before it spends anything, which reveals that there is one. Skip: it is left out. Default: Refuse.",
    )
    null_values: tuple[NullText, ...] = Field(
        (),
        max_length=20,
        description="Texts of csv and tsv files that mean no value, such as NULL, beside \\N and an empty text.",
    )
    unit: Unit = Field(description="The unit of privacy, and a lower bound of the number of units.")
    lineage: OneLine | None = Field(
        None,
        description="Your name for the people in the data, the same for all data sets about them. The "
        "ledger and the privacy statement record it. Default: none.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.lossOn) || (self.lossOn == 'Completion' ? has(self.columns.prompt) : "
            f"self.lossOn == 'Assistant' ? has(self.columns.messages) : "
            f"{' && '.join(f'!has(self.columns.{name})' for name in _LABELLED)})",
            "dataset.lossOn must fit dataset.columns: write Completion with prompt and completion, Assistant with "
            "messages, All with any text, and remove it with labels",
            _loss_fits,
            ".lossOn",
            id="LossOnFitsColumns",
        ),
        Rule(
            f"!has(self.overLength) || {tasks.no_images_cel('self.columns')}",
            "dataset.overLength is only valid for text, because images have no tokens: remove it",
            lambda dataset: dataset.over_length is None or not _has_images(dataset),
            ".overLength",
            id="OverLengthOfText",
        ),
    )


class Evaluation(Block):
    """Data to evaluate the model on during training. It has the same columns as the data set."""

    uri: URI = Field(description="Location of the data, in the form of dataset.uri.")
    format: FileFormat | None = Field(
        None, description="Format of the files; text is UTF-8. Default: from the file names."
    )
    visibility: Literal["Public", "Private"] = Field(
        description="Your attestation about the data. Public: the status shows the results; a set that shares a "
        "file or most records with the data set is refused. Private: it does not, and the privacy "
        "statement records that."
    )
    every_steps: Positive | None = Field(
        None,
        description="Number of steps between evaluations. The last step is always evaluated. Default: "
        "checkpoint.everySteps.",
    )
