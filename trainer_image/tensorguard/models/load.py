"""Loads a base model that is ready for an adapter: no dropout, attention for each record, equal weights on all ranks.

In: a `ModelSource` and the task. Out: a `BaseModel` on its device. Then `lora` attaches the adapter.

The base model's own dropout is switched off in the config before the model is made, and again in every module: many
layers keep the number from the config and have no `nn.Dropout`. The only dropout left is that of LoRA, seeded by
record. If the checkpoint lacks the output module of the task, the module is initialised from `lora.initSeed`, so all
ranks and attempts start from the same weights. `BaseModel.fresh` names such modules: `lora` trains and saves them,
because without them the trained model could not be rebuilt.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from tensafe_api.resources.model import Quantization
from tensorguard.models.attention import use_record_attention
from tensorguard.models.quantized import quantize
from tensorguard.models.source import ModelSource
from tensorguard.models.targets import resolve_modules_to_save
from tensorguard.models.tasks.base import Task
from tensorguard.models.tokenizer import loading, read_pretrained
from tensorguard.models.unsupported import UnsupportedModelError, configs, refuse_base, refuse_config

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype of the base weights for each `training.precision`. Trainable parameters are fp32 in all three."""


@dataclass(frozen=True)
class BaseModel:
    """A loaded model. `fresh`: its modules that the checkpoint lacks, and the output modules that its task trains."""

    model: PreTrainedModel
    task: Task
    fresh: tuple[str, ...]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within this context, torch's generators start from `seed`. Afterwards they have their earlier state."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def load_model(
    source: ModelSource,
    task: Task,
    *,
    init_seed: int,
    pad_token_id: int | None = None,
    precision: str = "fp32",
    device: str | torch.device = "cpu",
    trust_remote_code: bool = False,
    quantization: Quantization | None = None,
    modules_to_save: Sequence[str] = (),
) -> BaseModel:
    """Load the weights in `precision`, quantise them, and move them to `device` (before LoRA: opacus#820, peft#3409).

    `pad_token_id` is that of the tokenizer: decoders use it to find a record's last token. `modules_to_save`: those of
    `spec.lora`, which are not quantised. Raises UnsupportedModelError for models that cannot be trained record by
    record.
    """
    config = read_config(source, task, trust_remote_code=trust_remote_code)
    with seeded(init_seed), silenced():
        model, report = read_pretrained(
            getattr(transformers, task.auto_class),
            source,
            trust_remote_code,
            config=config,
            dtype=PRECISIONS[precision],
            attn_implementation="eager",
            ignore_mismatched_sizes=bool(task.heads),
            output_loading_info=True,
        )
    absent = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    fresh = _fresh_modules(model, task, sorted(absent))
    return prepare_base(
        model,
        task,
        fresh=fresh,
        pad_token_id=pad_token_id,
        device=device,
        quantization=quantization,
        modules_to_save=modules_to_save,
    )


def read_config(source: ModelSource, task: Task, *, trust_remote_code: bool) -> PreTrainedConfig:
    """The model's config, with the classes of the task and without dropout.

    Raises UnsupportedModelError for models that cannot be trained record by record.
    """
    config: PreTrainedConfig = read_pretrained(AutoConfig, source, trust_remote_code)
    refuse_config(config)
    if task.contract.classes:
        _set_labels(config, task)
    _switch_off_dropout(config)
    return config


def load_without_weights(
    source: ModelSource,
    task: Task,
    *,
    pad_token_id: int | None = None,
    precision: str = "fp32",
    trust_remote_code: bool = False,
    quantization: Quantization | None = None,
    modules_to_save: Sequence[str] = (),
) -> BaseModel:
    """The same model on torch's device `meta`: shapes and no numbers, from the config alone.

    A module that the checkpoint lacks and that is not an output module, such as a pooler, is not in `fresh`.
    """
    config = read_config(source, task, trust_remote_code=trust_remote_code)
    with torch.device("meta"), silenced():
        with loading(source, trust_remote_code):
            model = getattr(transformers, task.auto_class).from_config(
                config, dtype=PRECISIONS[precision], attn_implementation="eager", trust_remote_code=trust_remote_code
            )
        return prepare_base(
            model,
            task,
            pad_token_id=pad_token_id,
            device="meta",
            quantization=quantization,
            modules_to_save=modules_to_save,
        )


def prepare_base(
    model: PreTrainedModel,
    task: Task,
    *,
    fresh: Sequence[str] = (),
    pad_token_id: int | None = None,
    device: str | torch.device | None = "cpu",
    quantization: Quantization | None = None,
    modules_to_save: Sequence[str] = (),
) -> BaseModel:
    """Prepare a transformers model in memory for training record by record (see the module's docstring).

    `device`: where its weights move; None leaves them where they are.
    """
    refuse_config(model.config)
    refuse_base(model)
    _switch_off_dropout(model.config)
    for module in model.modules():
        _switch_off_dropout(module)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    use_record_attention(model)
    model.config.use_cache = False
    text = model.config.get_text_config()
    if getattr(text, "pad_token_id", pad_token_id) is None:  # the config of a vision model has no such field
        text.pad_token_id = pad_token_id
    heads = [name for name, _ in model.named_children() if name.endswith(task.heads)]
    task.prepare(model)
    trained = tuple(dict.fromkeys([*fresh, *heads]))
    if quantization is not None:  # before the move, so that the whole weights need no memory of the device
        quantize(model, quantization, resolve_modules_to_save(model, modules_to_save, trained))
    if device is not None:
        movable: Any = model  # `to` is wrapped, and the wrapper hides its types
        movable.to(device)
    return BaseModel(model, task, trained)


@contextmanager
def silenced() -> Iterator[None]:
    """Silence the progress bar of transformers and its report of missing weights: `_fresh_modules` checks those."""
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Recompute each layer in the backward pass instead of keeping its activations.

    Checkpointing is re-entrant on purpose: with the default of transformers, Opacus finds no per-example gradients and
    reports no error. The output of the embeddings must then require a gradient, or the first checkpointed layer has
    none; transformers ensures this for models that read `input_ids`, and this function for those that read pixels. May
    be called before or after `attach_lora`.
    Raises UnsupportedModelError if the model does not support it.
    """
    if not model.supports_gradient_checkpointing:
        raise UnsupportedModelError(
            f"spec.training.gradientCheckpointing is true, but {type(model).__name__} cannot recompute its layers: "
            "set it to false."
        )
    if model.main_input_name == "pixel_values":
        model.enable_input_require_grads()
    model.activation_checkpointing_enable({"use_reentrant": True})


def _set_labels(config: PreTrainedConfig, task: Task) -> None:
    names = task.label_names
    count = task.labels or len(names)
    if count < 2:
        raise ValueError(f"spec.model.numLabels is {task.labels}: {task.name} needs at least two labels.")
    if names and len(names) != count:
        raise ValueError(
            f"spec.model.labelNames has {len(names)} names, but spec.model.numLabels is {count}: match them."
        )
    config.num_labels = count
    if names:
        config.id2label = dict(enumerate(names))
        config.label2id = {name: index for index, name in enumerate(names)}


def _switch_off_dropout(owner: PreTrainedConfig | nn.Module) -> None:
    """Set every probability with "drop" in its name to 0: in a config and its parts, or among a module's attributes."""
    for part in configs(owner) if isinstance(owner, PreTrainedConfig) else [owner]:
        for field, value in list(vars(part).items()):
            if "drop" in field and isinstance(value, float):
                setattr(part, field, 0.0)


def _fresh_modules(model: PreTrainedModel, task: Task, keys: Sequence[str]) -> list[str]:
    """Names of the modules with `keys`, the weights that the checkpoint lacks. Only a head or pooler may lack them."""
    prefix = model.base_model_prefix
    modules = []
    for key in keys:
        parts = key.split(".")[:-1]
        depth = 2 if parts[:1] == [prefix] else 1
        name = ".".join(parts[:depth])
        if not name or not task.heads or (depth == 2 and parts[1:2] != ["pooler"]):
            raise UnsupportedModelError(
                f"spec.model.name: the checkpoint has no weights for '{key}': choose a model that was made for "
                f"{task.name}."
            )
        modules.append(name)
    return list(dict.fromkeys(modules))
