"""The table of the tasks, and the rules that follow from it: CEL, Python and the table's shapes agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, combinations

import pytest

from tensafe_api import tasks
from tensafe_api.resources.data import Columns
from tensafe_api.resources.status import EvaluationResult

Given = frozenset[str]


def subsets() -> Iterator[Given]:
    """Every set of columns that a manifest can name."""
    sizes = range(len(tasks.COLUMNS) + 1)
    return map(frozenset, chain.from_iterable(combinations(tasks.COLUMNS, size) for size in sizes))


def evaluate(cel: str, task: str, given: Given) -> bool:
    """The value of a rule's CEL: `has`, !, &&, ||, comparisons with a word, ternaries, and `exists_one`."""
    for _ in range(10):
        before, question, after = cel.partition(" ? ")
        if not question:
            break
        chosen, _, other = after.partition(" : ")
        cel = chosen if before == f"self.model.task == '{task}'" else other
    python = re.sub(r"has\(self\.(?:dataset\.columns\.)?(\w+)\)", r"('\1' in given)", cel)
    python = re.sub(r"(\[.*\])\.exists_one\(shape, shape\)", r"(sum(\1) == 1)", python)
    python = python.replace("&&", " and ").replace("||", " or ").replace("!", " not ").replace("false", "False")
    return bool(eval(python, {"given": given, "sum": sum}))


def test_rules_of_columns_in_cel_are_those_in_python() -> None:
    rules = tasks.columns_rules()
    for given in subsets():
        assert [evaluate(rule.cel, "", given) for rule in rules] == [rule.holds(given) for rule in rules], given


@pytest.mark.parametrize("task", tasks.TASKS)
def test_rule_of_task_and_columns_in_cel_is_that_in_python(task: str) -> None:
    cel = tasks.task_columns_cel("self.model.task", "self.dataset.columns")
    for given in subsets():
        assert evaluate(cel, task, given) == tasks.task_columns_hold(task, given), given


@pytest.mark.parametrize("task", tasks.TASKS)
def test_rules_accept_the_shapes_of_the_task_and_nothing_else(task: str) -> None:
    accepted = {
        given
        for given in subsets()
        if all(rule.holds(given) for rule in tasks.columns_rules()) and tasks.task_columns_hold(task, given)
    }
    assert accepted == {given for given in subsets() if tasks.shape_for(task, given)}


def test_no_set_of_columns_fits_two_tasks() -> None:
    """The Python API finds the task by the columns."""
    assert max(len(tasks.tasks_for(given)) for given in subsets()) == 1


def test_names_mean_one_thing() -> None:
    shapes = [shape for task in tasks.TASKS.values() for shape in task.shapes]
    columns = [column for shape in shapes for column in (*shape.required, *shape.optional)]
    assert set(columns) == set(tasks.COLUMNS.values()), "two columns have one name: give one of them another name"
    metrics = [metric for task in tasks.TASKS.values() for metric in task.metrics]
    assert set(metrics) == set(tasks.METRICS.values())


def test_fields_of_the_resources_are_those_of_the_table() -> None:
    assert list(Columns.model_fields) == list(tasks.COLUMNS)
    assert list(EvaluationResult.model_fields) == ["step", "loss", *tasks.METRICS]
    assert Columns(text="note", label="ward").given() == {"text": "note", "label": "ward"}
    assert EvaluationResult(step=1, loss="0.5", f1="0.25").metrics() == {"f1": "0.25"}


def test_labels_in_a_column_exclude_a_choice_of_the_loss() -> None:
    assert tasks.labelled_columns()[:3] == ("label", "tokens", "tags")
    assert not {"text", "prompt", "completion", "messages", "tools"} & set(tasks.labelled_columns())


@pytest.mark.parametrize(
    ("words", "sentence"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")], ids=len
)
def test_join(words: list[str], sentence: str) -> None:
    assert tasks.join(words) == sentence
