"""What is trained: the base model, and the LoRA factors that are added to it.

In comes the manifest's `spec.model` and `spec.lora`; the trainer's `models` package loads the one and attaches the
other. Only what can be trained with per-example gradients is offered: no DoRA, no quantised bases, no tied parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from tensafe_api import tasks
from tensafe_api.resources.base import Block, Rule, Unique
from tensafe_api.resources.values import Count, DataKey, Flag, ObjectName, OneLine, Positive, Share, Template

if TYPE_CHECKING:
    Task = str
else:
    Task = Literal[tuple(tasks.TASKS)]

_WITH = tasks.join(tasks.WITH_CLASSES)
_WITHOUT = tasks.join(name for name in tasks.TASKS if name not in tasks.WITH_CLASSES)


class ObjectKey(Block):
    """One key of a Secret or ConfigMap in the job's namespace."""

    name: ObjectName = Field(description="Name of the Secret or ConfigMap.")
    key: DataKey = Field(description="Key in its data.")


class Model(Block):
    """The base model. Its weights stay as they are."""

    name: OneLine = Field(
        description="The base model: a hub id such as Qwen/Qwen3-0.6B, a path, or the name of an installed Python "
        "package that holds a model."
    )
    revision: OneLine | None = Field(
        None, description="Branch, tag or commit of a hub id; default: the hub's main. The status shows the commit."
    )
    task: Task = Field(
        "CausalLM",
        description="What the model learns to do: " + ", or ".join(task.purpose for task in tasks.TASKS.values()) + ".",
    )
    num_labels: Annotated[int, Field(strict=True, ge=2, le=1000)] | None = Field(
        None, description=f"Number of classes; for {_WITH} only, and required there."
    )
    label_names: Annotated[tuple[OneLine, ...], Field(max_length=1000), Unique()] = Field(
        (),
        description="Names of the classes in the order of their numbers, as many as numLabels. Labels in the data may "
        "then be these names instead of numbers, and the trained model carries the names. Default: none.",
    )
    token_secret: ObjectKey | None = Field(
        None, description="Secret key that holds the hub's access token; default: none, for public models."
    )
    trust_remote_code: Flag = Field(
        False, description="Run Python code that comes with the model. That code sees the training data."
    )
    chat_template: Template | None = Field(
        None,
        description="Jinja template that turns a conversation into text; for dataset.columns.messages only; default: "
        "the tokenizer's own.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            " || ".join(f"self.task == '{name}'" for name in tasks.WITH_CLASSES)
            + " ? has(self.numLabels) : !has(self.numLabels)",
            f"model.numLabels belongs to {_WITH}: write it there (the number of classes), "
            f"and leave it out for {_WITHOUT}",
            lambda model: (model.num_labels is not None) == (model.task in tasks.WITH_CLASSES),
            ".numLabels",
        ),
        Rule(
            "!has(self.labelNames) || self.labelNames.size() == 0 || "
            "(has(self.numLabels) && self.labelNames.size() == self.numLabels)",
            "model.labelNames must name each class once: write as many names as numLabels says, or leave it out",
            lambda model: not model.label_names or len(model.label_names) == model.num_labels,
            ".labelNames",
        ),
    )


class Lora(Block):
    """The trainable low-rank factors."""

    rank: Annotated[int, Field(strict=True, ge=1, le=1024)] = Field(
        16, description="Rank of the factors. More rank means more parameters, and more noise in all of them."
    )
    alpha: Positive | None = Field(
        None, description="Scale of the factors (their product is multiplied by alpha / rank); default: 2 x rank."
    )
    dropout: Share = Field("0.05", description="Share of inputs to the factors that is dropped during training.")
    target_modules: Annotated[tuple[OneLine, ...], Field(max_length=64), Unique()] = Field(
        (),
        description="Names of the layers that get factors, or the one word all-linear; default: what peft has for this "
        "kind of model.",
    )
    layers: Annotated[tuple[Count, ...], Field(max_length=512), Unique()] = Field(
        (), description="Numbers of the transformer layers that get factors, from 0; default: all."
    )
    modules_to_save: Annotated[tuple[OneLine, ...], Field(max_length=16), Unique()] = Field(
        (),
        description="Names of further modules that are trained whole and saved with the adapter; default: none, "
        f"but for the new classifier of {_WITH}.",
    )
    init_seed: Count = Field(
        7, description="Seed of the factors' first values. It has no part in sampling, dropout or noise."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.targetModules) || self.targetModules.size() == 1 || "
            "!self.targetModules.exists(m, m == 'all-linear')",
            "lora.targetModules takes all-linear only by itself: write [all-linear], or the names of layers",
            lambda lora: len(lora.target_modules) == 1 or "all-linear" not in lora.target_modules,
            ".targetModules",
        ),
    )
