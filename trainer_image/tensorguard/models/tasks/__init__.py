"""The model tasks, one module and one class for each.

`base.Task` is what the rest of the trainer knows of a task. The class of a task has the name that a manifest gives in
`model.task`, and is in the module of that name in snake case: `CausalLM` is in `causal_lm`. The contract's part is
the entry of the same name in `tensafe_api.tasks`. docs/extending/model-task.md shows how to add a task.

Importing these modules imports neither torch nor transformers, because the processes that tokenise need neither.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

from tensafe_api.resources.job import Spec
from tensafe_api.tasks import TASKS
from tensorguard.data.recipe import Recipe
from tensorguard.data.tokenise import Tokeniser
from tensorguard.models.tasks.base import Task

if TYPE_CHECKING:
    from tensorguard.models.source import ModelSource

__all__ = ["Task", "module_of", "task_named", "task_of", "tokeniser_of"]

_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def task_named(name: str, *, labels: int = 0, label_names: tuple[str, ...] = ()) -> Task:
    """The task that a manifest calls `name`, for `labels` classes (0: none) with these names (empty: without names).

    Raises KeyError where `tensafe_api.tasks` has no such task.
    """
    module = importlib.import_module(f"{__name__}.{module_of(TASKS[name].name)}")
    task: Task = getattr(module, name)(labels, label_names)
    return task


def task_of(spec: Spec) -> Task:
    """The task of a job."""
    model = spec.model
    task = task_named(model.task, labels=model.num_labels or 0, label_names=model.label_names)
    return task.of_head() if spec.head_only else task


def tokeniser_of(spec: Spec, source: ModelSource) -> Tokeniser:
    """The tokeniser of a job, whose model's files are at `source`.

    Raises:
        UnsupportedModelError, DataError: the model's files do not fit the job.
    """
    task = task_of(spec)
    return task.tokeniser(task.load_processor(source, spec.model), Recipe.from_spec(spec))


def module_of(name: str) -> str:
    """The name of the module that holds the class of a task: CausalLM is in causal_lm."""
    return _WORD_STARTS.sub("_", name).lower()
