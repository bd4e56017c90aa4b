"""How a job wants its records tokenised: the manifest's settings for `tokenise`, small enough to send to Ray tasks.

`Recipe` holds the fields of the manifest that decide how a record becomes tokens, so `tokenise` and the tasks read no
manifest: they use roles (such as prompt, completion, text, label) and plain values. `shards` and `pod_shard` read the
fields on units and on the evaluation set themselves. The manifest's rules ensure that roles, task and lossOn fit
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tensafe_api.resources.job import Spec
from tensafe_api.resources.training import DEFAULT_MAX_LENGTH
from tensafe_api.tasks import shape_for
from tensorguard.data.errors import DataError
from tensorguard.data.unusable import Unusable
from tensorguard.data.values import UnusableValue, label_of


@dataclass(frozen=True)
class Recipe:
    """How one record becomes tokens.

    Attributes:
        columns: role -> column name, without the user's.
        max_length: in tokens; without meaning for images.
        truncate: whether longer records are cut there; otherwise they are dropped.
        loss_on: Completion, Assistant or All; None if a column has the labels.
        chat_template: None for the tokenizer's own.
        labels: number of classes, 0 if the task has none.
        label_names: the names of the classes in order; may be empty.
    """

    columns: Mapping[str, str]
    max_length: int
    truncate: bool = True
    loss_on: str | None = None
    chat_template: str | None = None
    labels: int = 0
    label_names: tuple[str, ...] = ()

    @cached_property
    def classes(self) -> dict[str, int]:
        """The number of each class by the text of its name (`values.label_of`), or of its number without names.

        Raises DataError for two names that are the same text.
        """
        if not self.label_names:
            return {str(number): number for number in range(self.labels)}
        classes: dict[str, int] = {}
        for number, name in enumerate(self.label_names):
            other = classes.setdefault(label_of(name), number)
            if other != number:
                raise DataError(
                    f"spec.model.labelNames: {self.label_names[other]!r} and {name!r} are the same, because labels are "
                    "compared without case and white space: rename one"
                )
        return classes

    def class_of(self, label: str) -> int:
        """The number of the class of a label, from its text (`values.label_of`).

        Where the job names its classes, only a name is a class; otherwise the numbers from 0 are.
        Raises UnusableValue for any other label.
        """
        number = self.classes.get(label)
        if number is None:
            raise UnusableValue(Unusable.UNKNOWN_LABEL)
        return number

    @classmethod
    def from_spec(cls, spec: Spec) -> Recipe:
        """The recipe of a job's spec."""
        columns = spec.dataset.columns.given()
        shape = shape_for(spec.model.task, columns)
        return cls(
            columns=columns,
            max_length=spec.training.max_length or DEFAULT_MAX_LENGTH,
            truncate=spec.dataset.over_length != "Drop",
            loss_on=spec.dataset.loss_on or (shape.loss_on if shape else None),
            chat_template=spec.model.chat_template,
            labels=spec.model.num_labels or 0,
            label_names=spec.model.label_names,
        )


def columns_of(spec: Spec) -> dict[str, str]:
    """Role -> column name of all columns that a job reads, including the user's id if users are the units."""
    columns = dict(Recipe.from_spec(spec).columns)
    if spec.dataset.unit.column is not None:
        columns["user"] = spec.dataset.unit.column
    return columns
