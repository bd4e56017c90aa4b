"""How a job wants its records tokenised: the manifest's settings for `tokenise`, small enough to send to Ray tasks.

This is the only module of the package that reads the manifest's fields. The others use roles (prompt, completion,
messages, tools, text, label, user) and plain values. The manifest's rules ensure that roles, task and lossOn fit
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensafe_api.resources.job import Spec
from tensafe_api.tasks import shape_for


@dataclass(frozen=True)
class Recipe:
    """How one record becomes tokens.

    columns: role -> column name, without the user's. max_length: in tokens; truncate: longer records are cut there,
    otherwise dropped. loss_on: Completion, Assistant or All; None if a column has the labels. chat_template: None for
    the tokenizer's own. labels: number of classes, 0 if the task has none. label_names: the classes' names in
    order; may be empty.
    """

    columns: Mapping[str, str]
    max_length: int
    truncate: bool = True
    loss_on: str | None = None
    chat_template: str | None = None
    labels: int = 0
    label_names: tuple[str, ...] = ()

    @classmethod
    def from_spec(cls, spec: Spec) -> Recipe:
        """The recipe of a job's spec."""
        columns = spec.dataset.columns.given()
        shape = shape_for(spec.model.task, columns)
        return cls(
            columns=columns,
            max_length=spec.training.max_length,
            truncate=spec.dataset.over_length == "Truncate",
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
