"""The model of a job: the base model, and the LoRA factors that are trained on top of it.

The trainer's `models` package loads the model of `spec.model` and attaches the factors of `spec.lora`. The fields offer
only what allows per-example gradients: no DoRA, no tied trainable parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from tensafe_api import tasks
from tensafe_api.resources.base import Block, Rule, Unique
from tensafe_api.resources.mechanism import MAX_EARLIER_TRAININGS, EarlierSteps
from tensafe_api.resources.numeric import Count, Flag, Positive, Share
from tensafe_api.resources.strings import DataKey, ObjectName, OneLine, StoreURI, Template

if TYPE_CHECKING:
    Task = str
else:
    Task = Literal[tuple(tasks.TASKS)]

Quantization = Literal["NF4", "INT8"]
"""How the frozen weights of the base model are stored: four or eight bits a number."""

COMMIT = "commit:"
"""How the ledger and the statement name a model on the hub: this, then its commit."""


def commit_of(model_weights: str | None) -> str | None:
    """The commit in the name of a model's weights; None for a model that is not on the hub, or not known."""
    if model_weights is None or not model_weights.startswith(COMMIT):
        return None
    return model_weights.removeprefix(COMMIT)


_PURPOSES = tasks.join((task.purpose for task in tasks.TASKS.values()), "or")
_WITH = tasks.join(tasks.WITH_CLASSES)
_WITHOUT = tasks.join(name for name in tasks.TASKS if name not in tasks.WITH_CLASSES)


class ObjectKey(Block):
    """One key of a Secret or ConfigMap in the namespace of the job."""

    name: ObjectName = Field(description="Name of the Secret or ConfigMap.")
    key: DataKey = Field(description="Key in the data of the Secret or ConfigMap.")


class Model(Block):
    """The base model and the task it learns. The weights of the base model do not change."""

    name: OneLine = Field(
        description="The base model: a Hugging Face Hub id such as Qwen/Qwen3-0.6B, a path, or an installed Python "
        "package that contains a model."
    )
    revision: OneLine | None = Field(
        None, description="Branch, tag or commit of the model on the Hub. Default: main. The status shows the commit."
    )
    task: Task = Field(
        "CausalLM",
        description=f"What the model learns to do: {_PURPOSES}.",
    )
    quantization: Quantization | None = Field(
        None,
        description="Keep the frozen linear layers in fewer bits: NF4 with 4.5 bits a number, INT8 with 8. Less "
        "memory, more time. It computes in training.precision. Default: none.",
    )
    num_labels: Annotated[int, Field(strict=True, ge=2, le=1000)] | None = Field(
        None, description=f"Number of classes. Required for {_WITH}, otherwise refused."
    )
    label_names: Annotated[tuple[OneLine, ...], Field(max_length=1000), Unique()] = Field(
        (),
        description="Names of the numLabels classes in the order of their numbers. Labels in the data may then be "
        "names, and the trained model has them. Default: none.",
    )
    token_secret: ObjectKey | None = Field(
        None, description="Key of a Secret with the access token of the Hub. Default: none, for public models."
    )
    trust_remote_code: Flag = Field(
        False, description="Run Python code that is part of the model. That code can read the training data."
    )
    sharding: Literal["Replicated", "Worker", "Workers"] | None = Field(
        None,
        description="Which GPUs share one frozen base model. Replicated: none. Worker: those of a worker. "
        "Workers: those of the job, over a fast network. Default: Worker if cluster.worker.gpus is "
        "above 1, else Replicated.",
    )
    chat_template: Template | None = Field(
        None,
        description="Jinja template that turns a conversation into text. Valid with dataset.columns.messages "
        "only. Default: the tokenizer's.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            " || ".join(f"self.task == '{name}'" for name in tasks.WITH_CLASSES)
            + " ? has(self.numLabels) : !has(self.numLabels)",
            f"model.numLabels is required for {_WITH} and refused for {_WITHOUT}: write the number of classes, or "
            "remove it",
            lambda model: (model.num_labels is not None) == (model.task in tasks.WITH_CLASSES),
            ".numLabels",
            id="NumLabelsOfTask",
        ),
        Rule(
            "!has(self.labelNames) || self.labelNames.size() == 0 || "
            "(has(self.numLabels) && self.labelNames.size() == self.numLabels)",
            "model.labelNames must name each class once: write numLabels names, or remove it",
            lambda model: not model.label_names or len(model.label_names) == model.num_labels,
            ".labelNames",
            id="LabelNamesMatchNumLabels",
        ),
    )


class InitFrom(Block):
    """An adapter that was trained before, by this software. The new adapter starts from its weights."""

    uri: StoreURI = Field(description="The checkpoint of the adapter, such as s3://clinic/models/triage/final.")
    earlier_steps: Annotated[tuple[EarlierSteps, ...], Field(min_length=1, max_length=MAX_EARLIER_TRAININGS)] = Field(
        description="What the adapter has spent: the privacy events of its statement. If they differ, the error "
        "shows those. Every epsilon counts them, as if each unit were in the earlier data too."
    )
    unit_column: OneLine | None = Field(
        None,
        description="Column of the user ids in the earlier data, which must name the same people. Default: "
        "dataset.unit.column.",
    )


class Lora(Block):
    """The trainable low-rank (LoRA) factors."""

    rank: Annotated[int, Field(strict=True, ge=1, le=1024)] = Field(
        16, description="Rank of the factors. A higher rank means more parameters, each of which receives noise."
    )
    alpha: Positive | None = Field(
        None, description="Scale of the factors: their product is multiplied by alpha / rank. Default: 2 x rank."
    )
    variant: Literal["Standard", "FrozenA"] = Field(
        "Standard",
        description="Which factors of a layer are trained, and receive noise. Standard: both, A and B. FrozenA: "
        "only B; A keeps its initial values.",
    )
    dropout: Share = Field("0.05", description="Dropout probability of the inputs of the factors.")
    target_modules: Annotated[tuple[OneLine, ...], Field(max_length=64), Unique()] = Field(
        (),
        description="Modules that get factors, or all-linear alone for all linear layers. Default: peft's choice "
        "for the model type; query and value of a vision transformer.",
    )
    layers: Annotated[tuple[Count, ...], Field(max_length=512), Unique()] | None = Field(
        None,
        description="Numbers of the transformer layers that get factors, from 0. An empty list: none, so that only the "
        f"classifier of {_WITH} is trained. A text is then classified by the mean of its tokens. Default: all layers.",
    )
    modules_to_save: Annotated[tuple[OneLine, ...], Field(max_length=16), Unique()] = Field(
        (),
        description="Modules that are trained in full and saved with the adapter. Default: none, except the "
        f"new classifier of {_WITH}.",
    )
    init_seed: Count = Field(
        7, description="Seed of the initial values of the factors. Sampling, dropout and noise do not use it."
    )
    init_from: InitFrom | None = Field(
        None,
        description="An adapter from whose weights training starts. It must have the same base model, unit, and "
        "lora fields, except variant, dropout and initSeed. Default: new factors.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.targetModules) || self.targetModules.size() == 1 || "
            "!self.targetModules.exists(m, m == 'all-linear')",
            "lora.targetModules must have all-linear as its only entry: write [all-linear], or the names of modules",
            lambda lora: len(lora.target_modules) == 1 or "all-linear" not in lora.target_modules,
            ".targetModules",
            id="AllLinearAlone",
        ),
        Rule(
            "!has(self.layers) || self.layers.size() > 0 || "
            "((!has(self.targetModules) || self.targetModules.size() == 0) && "
            "(!has(self.modulesToSave) || self.modulesToSave.size() == 0))",
            "lora.layers must not be empty beside targetModules or modulesToSave, because then only the classifier is "
            "trained: remove them, or name layers",
            lambda lora: (
                lora.layers is None or len(lora.layers) > 0 or not (lora.target_modules or lora.modules_to_save)
            ),
            ".layers",
            id="HeadOnlyTrainsNothingElse",
        ),
    )
