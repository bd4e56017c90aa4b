"""Builds a model whose weights are still in their files, so that each worker reads only its own part of them.

In: a `ModelSource` and the task. Out: a `DeferredModel`: a `BaseModel` with all its modules, whose frozen weights are
placeholders without memory, and the place of each weight in the model's files. `lora` attaches the adapter to it as to
a loaded model. Then `sharded_base` replaces each placeholder by one worker's rows.

This needs files in which every weight has its name and shape in the model. A model whose weights transformers converts
or creates while loading is loaded as a whole instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import transformers
from accelerate import init_empty_weights
from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.initialization import no_init_weights

from tensorguard.models.load import PRECISIONS, BaseModel, prepare_base, read_config, silenced
from tensorguard.models.source import ModelSource
from tensorguard.models.targets import resolve_modules_to_save
from tensorguard.models.tasks.base import Task
from tensorguard.models.tokenizer import loading
from tensorguard.models.weight_files import WeightFiles

Place = tuple[nn.Module, str]
"""A module, and the name of one of its parameters or buffers."""


@dataclass(frozen=True)
class DeferredModel:
    """A model without its weights.

    Attributes:
        base: its frozen weights are placeholders: one number each, seen in the shape of the weight.
        files: of the weights.
        names: the name in `files` of each placeholder, by its place. Tied weights have several places.
    """

    base: BaseModel
    files: WeightFiles
    names: Mapping[Place, str]


def load_deferred(
    source: ModelSource,
    task: Task,
    *,
    modules_to_save: Sequence[str],
    precision: str,
    pad_token_id: int | None,
) -> DeferredModel | None:
    """The model on the CPU, whose weights are read later, or None if its files do not have each weight under its name.

    Modules that are trained in full have their weights already, because the adapter copies them.
    """
    with loading(source, False):
        files = WeightFiles.of(source)
    if files is None:
        return None
    config = read_config(source, task, trust_remote_code=False)
    kind = getattr(transformers, task.auto_class)
    with loading(source, False), silenced(), init_empty_weights(include_buffers=False), no_init_weights():
        model = kind.from_config(config, dtype=PRECISIONS[precision], attn_implementation="eager")
    model.tie_weights()
    names = _names_in_files(model, files)
    if names is None:
        return None
    base = prepare_base(model, task, pad_token_id=pad_token_id, device=None)
    saved = resolve_modules_to_save(model, modules_to_save, base.fresh)
    whole = {id(part) for name in saved for part in model.get_submodule(name).modules()}
    frozen: dict[Place, str] = {}
    made: dict[str, nn.Parameter] = {}
    for (module, attribute), name in names.items():
        own = getattr(module, attribute)
        if not isinstance(own, nn.Parameter):
            own.copy_(files.read(name))
        elif id(module) in whole or not own.ndim:
            setattr(module, attribute, nn.Parameter(files.read(name).to(own.dtype), requires_grad=False))
        else:
            placeholder = torch.zeros(1, dtype=own.dtype).expand(own.shape)
            setattr(module, attribute, made.setdefault(name, nn.Parameter(placeholder, requires_grad=False)))
            frozen[module, attribute] = name
    return DeferredModel(base, files, frozen)


def _names_in_files(model: PreTrainedModel, files: WeightFiles) -> dict[Place, str] | None:
    """The name in the files of each weight; None if one is not there as it is in the model."""
    kept_exact = model._keep_in_fp32_modules or model._keep_in_fp32_modules_strict
    if get_model_conversion_mapping(model, add_legacy=False) or (kept_exact and model.dtype != torch.float32):
        return None
    tied: dict[int, str] = {}
    found: dict[Place, str] = {}
    for name, place in _places(model):
        tensor, bare = getattr(*place), name.removeprefix(f"{model.base_model_prefix}.")
        if bare != name and {name, bare} <= files.files.keys():
            return None  # transformers decides which of the two it is
        for candidate in (name, bare, tied.get(id(tensor), name)):
            if candidate in files.files and files.shape(candidate) == tuple(tensor.shape):
                found[place] = tied[id(tensor)] = candidate
                break
    if any(place not in found and id(getattr(*place)) not in tied for _, place in _places(model)):
        return None
    return {place: found.get(place, tied[id(getattr(*place))]) for _, place in _places(model)}


def _places(model: nn.Module) -> Iterator[tuple[str, Place]]:
    """Each parameter and each buffer that a checkpoint has, with its name. A tied one has several."""
    for prefix, module in model.named_modules():
        dot = f"{prefix}." if prefix else ""
        for attribute in module._parameters:
            if module._parameters[attribute] is not None:
                yield dot + attribute, (module, attribute)
        for attribute, buffer in module._buffers.items():
            if buffer is not None and attribute not in module._non_persistent_buffers_set:
                yield dot + attribute, (module, attribute)
