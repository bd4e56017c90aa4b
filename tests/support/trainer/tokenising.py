"""A tokeniser for tests that have a recipe and no job."""

from __future__ import annotations

from typing import Any

from tensafe_api.tasks import tasks_for
from tensorguard.data.recipe import Recipe
from tensorguard.data.tokenise import Tokeniser
from tensorguard.models.tasks import task_named


def tokeniser(tokenizer: Any, recipe: Recipe) -> Tokeniser:
    """The tokeniser of the first task that has the recipe's columns."""
    task = task_named(tasks_for(recipe.columns)[0], labels=recipe.labels, label_names=recipe.label_names)
    return task.tokeniser(tokenizer, recipe)
