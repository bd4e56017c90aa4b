"""The model tasks: what a manifest may ask of each one, and which metrics a status shows for it.

`TASKS` is the contract's part of a task. The trainer's part is the class of the same name in
`tensorguard.models.tasks`. From the entries follow the values of `model.task`, the fields and rules of
`dataset.columns`, the rules of `model.numLabels` and `dataset.lossOn`, and the metrics of `status.evaluations`.
`tensafe_api.resources` and the trainer read this table. docs/extending/model-task.md shows how to add an entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Content = Literal["text", "label", "conversation", "tools", "words", "word labels", "image"]
"""What a column holds: a string; a class; a list of messages, or of tools, or its JSON text; a list of strings; a list
of classes; the bytes of an image file."""


@dataclass(frozen=True)
class Column:
    """One column of a data set. `name` is its field in `dataset.columns`, where the manifest names the real column."""

    name: str
    content: Content
    description: str


@dataclass(frozen=True)
class Shape:
    """One set of columns that can hold the records of a task.

    Attributes:
        required: the columns that are always there. The first one distinguishes this shape from those of another kind.
        optional: columns that may be there too.
        loss_on: the default of `dataset.lossOn`. None: the labels are in a column, and lossOn is refused.
        noun: what the records are, for messages. Empty: the name of the first column.
    """

    required: tuple[Column, ...]
    optional: tuple[Column, ...] = ()
    loss_on: Literal["Completion", "Assistant", "All"] | None = None
    noun: str = ""

    @property
    def first(self) -> str:
        """The name of the first column."""
        return self.required[0].name

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of the required columns."""
        return tuple(column.name for column in self.required)

    def fits(self, given: Collection[str]) -> bool:
        """Whether the columns that a manifest names are this shape's."""
        return set(self.roles) <= set(given) <= {*self.roles, *(column.name for column in self.optional)}


@dataclass(frozen=True)
class Metric:
    """One figure of a public evaluation beside the loss: a share from 0 to 1, of which more is better.

    `name` is its field in `status.evaluations`; `title` is its name in a sentence.
    """

    name: str
    title: str
    description: str


@dataclass(frozen=True)
class TaskContract:
    """The contract's part of one task.

    Attributes:
        name: the value of `model.task`, and the name of the trainer's class.
        purpose: completes "What the model learns to do: ...".
        learning_rate: the default of `training.learningRate`, where the public search for a better one begins.
        shapes: the sets of columns that it can learn from.
        classes: whether it has classes: then `model.numLabels` is required, otherwise it is refused.
        metrics: what a public evaluation can measure beside the loss, the most telling one first.
    """

    name: str
    purpose: str
    learning_rate: str
    shapes: tuple[Shape, ...]
    classes: bool = False
    metrics: tuple[Metric, ...] = ()


ACCURACY = Metric("accuracy", "accuracy", "Fraction of correct predictions, for classification.")
TEXT = Column("text", "text", "Column of the text.")
LABEL = Column(
    "label",
    "label",
    "Column of the class: a name from model.labelNames, or without names a number from 0. Valid with text or image "
    "only.",
)

CAUSAL_LM = TaskContract(
    name="CausalLM",
    purpose="write text",
    learning_rate="5e-3",
    shapes=(
        Shape(
            (
                Column("prompt", "text", "Column of the prompt. Requires completion."),
                Column("completion", "text", "Column of the completion. Requires prompt."),
            ),
            loss_on="Completion",
        ),
        Shape(
            (
                Column(
                    "messages",
                    "conversation",
                    "Column of the conversation: an ordered list of messages, each with role and content. One "
                    "conversation is one example.",
                ),
            ),
            (
                Column(
                    "tools",
                    "tools",
                    "Column of the tools that the conversation may call. Valid with messages only. Default: no tools.",
                ),
            ),
            loss_on="Assistant",
            noun="conversations",
        ),
        Shape((TEXT,), loss_on="All"),
    ),
)

SEQUENCE_CLASSIFICATION = TaskContract(
    name="SequenceClassification",
    purpose="put text into classes",
    learning_rate="2e-2",
    shapes=(Shape((TEXT, LABEL)),),
    classes=True,
    metrics=(ACCURACY,),
)

TOKEN_CLASSIFICATION = TaskContract(
    name="TokenClassification",
    purpose="give each word a class",
    learning_rate="2e-2",
    shapes=(
        Shape(
            (
                Column("tokens", "words", "Column of the words of a text: a list of strings. Requires tags."),
                Column(
                    "tags",
                    "word labels",
                    "Column of the words' classes: for each word a name from model.labelNames, or without names a "
                    "number from 0. Requires tokens.",
                ),
            ),
        ),
    ),
    classes=True,
    metrics=(
        Metric(
            "f1",
            "F1",
            "F1 of the entities, for TokenClassification. Requires model.labelNames in the IOB2 form: B-x, I-x, O.",
        ),
    ),
)

IMAGE_CLASSIFICATION = TaskContract(
    name="ImageClassification",
    purpose="put images into classes",
    learning_rate="2e-2",
    shapes=(
        Shape(
            (
                Column(
                    "image",
                    "image",
                    "Column of the image: the content of a PNG, JPEG, BMP or GIF file, as bytes, as an object with a "
                    "field bytes, or in base64. Requires label.",
                ),
                LABEL,
            ),
            noun="images",
        ),
    ),
    classes=True,
    metrics=(ACCURACY,),
)

TASKS = {task.name: task for task in (CAUSAL_LM, SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION, IMAGE_CLASSIFICATION)}
"""The tasks by name, the default one first."""

COLUMNS = {
    column.name: column
    for task in TASKS.values()
    for shape in task.shapes
    for column in (*shape.required, *shape.optional)
}
"""The columns of all tasks by name, in the order of the fields of `dataset.columns`."""

OPTIONAL_COLUMNS = frozenset(
    column.name for task in TASKS.values() for shape in task.shapes for column in shape.optional
)
"""The names of the columns that a record need not have."""

METRICS = {metric.name: metric for task in TASKS.values() for metric in task.metrics}
"""The metrics of all tasks by name, in the order of the fields of `status.evaluations`."""

WITH_CLASSES = tuple(task.name for task in TASKS.values() if task.classes)
"""The tasks that have classes."""


def learning_rates() -> str:
    """The default learning rates in words: "5e-3 for CausalLM, 2e-2 for SequenceClassification and ..."."""
    rates = dict.fromkeys(task.learning_rate for task in TASKS.values())
    return ", ".join(
        f"{rate} for {join(name for name, task in TASKS.items() if task.learning_rate == rate)}" for rate in rates
    )


def given_in(columns: Any) -> set[str]:
    """The names of the columns that a manifest's `dataset.columns` names."""
    return {name for name in COLUMNS if getattr(columns, name) is not None}


def shape_for(task: str, given: Collection[str]) -> Shape | None:
    """The shape of `task` that has exactly the columns `given`; None where none has."""
    return next((shape for shape in TASKS[task].shapes if shape.fits(given)), None)


def tasks_for(given: Collection[str]) -> list[str]:
    """The names of the tasks that can learn from the columns `given`."""
    return [name for name in TASKS if shape_for(name, given)]


def join(words: Iterable[str], last: str = "and") -> str:
    """Words as a list in a sentence: "a, b and c"."""
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end


@dataclass(frozen=True)
class ColumnsRule:
    """A condition on the names of the given columns: as CEL on an object of columns, as a predicate, and a message.

    `path` is the field that the message is about, as CEL writes it; empty: all columns. `id` names the rule.
    """

    cel: str
    message: str
    holds: Callable[[Collection[str]], bool]
    path: str = ""
    id: str = ""


def _shapes() -> list[Shape]:
    return [shape for task in TASKS.values() for shape in task.shapes]


def _kinds() -> dict[str, tuple[tuple[str, ...], tuple[str, ...], str]]:
    """By first column: the columns that all shapes of that kind need, the others, and what the records are."""
    kinds: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {}
    for first in dict.fromkeys(shape.first for shape in _shapes()):
        same = [shape for shape in _shapes() if shape.first == first]
        every = dict.fromkeys(column.name for shape in same for column in (*shape.required, *shape.optional))
        needed = tuple(name for name in every if all(name in shape.roles for shape in same))
        noun = next((shape.noun for shape in same if shape.noun), first)
        kinds[first] = (needed, tuple(name for name in every if name not in needed), noun)
    return kinds


def columns_rules() -> list[ColumnsRule]:
    """The rules of `dataset.columns` by itself, whatever the task is."""
    kinds = _kinds()
    owners: dict[str, list[str]] = {}
    for first, (needed, others, _) in kinds.items():
        for name in (*needed, *others):
            owners.setdefault(name, []).append(first)
    own = [[name for name in needed if len(owners[name]) == 1] for needed, _, _ in kinds.values()]
    pairs = [pair for names in own for pair in itertools.pairwise(names)]
    shared = [(first, name) for first, (needed, _, _) in kinds.items() for name in needed if len(owners[name]) > 1]
    together = [
        *(f"has(self.{one}) == has(self.{other})" for one, other in pairs),
        *(f"(!has(self.{first}) || has(self.{name}))" for first, name in shared),
    ]
    one_kind = f"[{', '.join(f'has(self.{first})' for first in kinds)}].exists_one(shape, shape)"

    def one_shape(given: Collection[str]) -> bool:
        complete = all((one in given) == (other in given) for one, other in pairs)
        complete = complete and all(first not in given or name in given for first, name in shared)
        return complete and sum(first in given for first in kinds) == 1

    shapes = ", or ".join(join(needed) for needed, _, _ in kinds.values())
    rules = [
        ColumnsRule(
            " && ".join([*together, one_kind]),
            f"dataset.columns must name exactly one shape of data: write {shapes}",
            one_shape,
            id="OneShapeOfColumns",
        )
    ]
    for name, firsts in owners.items():
        if len(firsts) == 1 and name in kinds[firsts[0]][0]:
            continue
        beside = " || ".join(f"has(self.{first})" for first in firsts)
        nouns = join((kinds[first][2] for first in firsts), "or")
        rules.append(
            ColumnsRule(
                f"!has(self.{name}) || {beside}",
                f"dataset.columns.{name} is only valid for {nouns}: write it together with {join(firsts, 'or')}, or "
                "remove it",
                _beside(name, firsts),
                f".{name}",
                id=f"{name.capitalize()}Column",
            )
        )
    return rules


def _beside(name: str, firsts: Collection[str]) -> Callable[[Collection[str]], bool]:
    return lambda given: name not in given or any(first in given for first in firsts)


def task_columns_cel(task: str, columns: str) -> str:
    """CEL that is true where the columns fit the task; `task` and `columns` are the paths of both in a manifest.

    It assumes that the rules of `columns_rules` hold. Where one of them is broken, this rule may be reported as well.
    """
    written = "false"
    for name in reversed(TASKS):
        conditions = []
        for first, choices in _choices(name).items():
            if any(not present and not absent for present, absent in choices):
                continue
            absence = f"!has({columns}.{first})"
            allowed = [
                " && ".join(
                    [f"has({columns}.{column})" for column in present]
                    + [f"!has({columns}.{column})" for column in absent]
                )
                for present, absent in choices
            ]
            conditions.append(f"({' || '.join([absence, *allowed])})" if allowed else absence)
        written = f"{task} == '{name}' ? {' && '.join(conditions) or 'true'} : {written}"
    return written


def task_columns_hold(task: str, given: Collection[str]) -> bool:
    """The condition of `task_columns_cel` in Python."""
    return all(
        first not in given
        or any(set(present) <= set(given) and not set(absent) & set(given) for present, absent in choices)
        for first, choices in _choices(task).items()
    )


def _choices(task: str) -> dict[str, list[tuple[list[str], list[str]]]]:
    """By first column, for each shape of `task` with that one: which further columns must be there, and which not."""
    choices = {}
    for first, (needed, others, _) in _kinds().items():
        shapes = [shape for shape in TASKS[task].shapes if shape.first == first]
        choices[first] = [
            (
                [name for name in shape.roles if name not in needed],
                [name for name in others if name not in {c.name for c in (*shape.required, *shape.optional)}],
            )
            for shape in shapes
        ]
    return choices


def task_columns_message() -> str:
    """What to write where the columns do not fit the task."""
    by_task = (f"{join((join(shape.roles) for shape in task.shapes), 'or')} for {task.name}" for task in TASKS.values())
    return f"dataset.columns must fit model.task: write {'; '.join(by_task)}"


def labelled_columns() -> tuple[str, ...]:
    """The columns that only records with labels have: where one of them is given, `dataset.lossOn` is refused."""
    plain = {column for shape in _shapes() if shape.loss_on for column in (*shape.required, *shape.optional)}
    return tuple(name for name, column in COLUMNS.items() if column not in plain)


def image_columns() -> tuple[str, ...]:
    """The columns of images. A record with one of them has no tokens."""
    return tuple(name for name, column in COLUMNS.items() if column.content == "image")


def no_images_cel(columns: str) -> str:
    """CEL that is true where no column of images is given; `columns` is the path of the columns in a manifest."""
    return " && ".join(f"!has({columns}.{name})" for name in image_columns())


def shapes_by_size() -> Sequence[Shape]:
    """All shapes, in the order in which the columns of a data set are compared with them: of one kind, large first."""
    kinds = list(_kinds())
    return sorted(_shapes(), key=lambda shape: (kinds.index(shape.first), -len(shape.required)))
