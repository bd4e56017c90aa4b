"""Resolves the names in a manifest's LoRA fields to modules.

In: the base model and the names that the user wrote. Out: full module names, so that peft adapts exactly the modules
that were checked here. `lora` passes them to peft.

peft alone accepts many mistakes without an error: a name that matches nothing beside one that matches; layer numbers
that do not exist; `layers` together with full names, where it ignores `layers`; and, for modulesToSave, any module
whose name merely *ends* in the same letters. Here each of these is corrected or an error, with the field and the
nearest names.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as PEFT_DEFAULTS
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tensafe_api.reasons import Reason
from tensorguard.models.quantized import QuantizedLinear
from tensorguard.models.unsupported import UnsupportedModelError

ALL_LINEAR = "all-linear"

VISION_MODELS = frozenset({"beit", "deit", "dinov2", "vit"})
"""Model types for which peft has no default. Theirs is that of peft for other encoders: query and value."""
QUERY_AND_VALUE = (("q_proj", "v_proj"), ("query", "value"))
"""The names of the two layers in different versions of transformers."""

_LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")
"""The first number inside a module's name is its layer, as in peft."""


class LoraTargetError(ValueError):
    """A name in `spec.lora` does not fit the model. The message is one sentence with the field and the fix."""

    reason: ClassVar[Reason] = Reason.MODEL_UNSUPPORTED


def resolve_targets(
    model: PreTrainedModel, names: Sequence[str] | None, layers: Sequence[int] | None, excluded: Sequence[str]
) -> list[str]:
    """Full names of the layers to adapt.

    `names`: as the user wrote them (the ends of module names), `[all-linear]`, or None or empty for peft's default for
    this model. `layers`: layer numbers, None for all. `excluded`: modules that are trained in full and get no LoRA.
    """
    found = _all_linear(model) if list(names or ()) == [ALL_LINEAR] else _named(model, names or _default(model))
    found = [name for name in found if not _inside(name, excluded)]
    if layers:
        found = _in_layers(found, layers)
    if not found:
        raise LoraTargetError(
            "spec.lora.targetModules names only modules that are trained in full (modulesToSave): name others."
        )
    modules = dict(model.named_modules())
    for name in found:
        if type(modules[name]) not in (nn.Linear, QuantizedLinear, Conv1D):
            raise UnsupportedModelError(
                f"spec.lora.targetModules matches '{name}', a {type(modules[name]).__name__}: "
                "LoRA is supported for nn.Linear and GPT-2's Conv1D."
            )
    return found


def resolve_modules_to_save(model: PreTrainedModel, names: Sequence[str], fresh: Sequence[str]) -> list[str]:
    """Full names of the modules to train in full: the user's (ends of module names), then the model's head (`fresh`).

    Raises LoraTargetError if a name matches nothing, and UnsupportedModelError if a weight is shared with another
    module (tied embeddings).
    """
    existing = [name for name, _ in model.named_modules()]
    for name in names:
        if not _matches(existing, name):
            raise LoraTargetError(
                f"spec.lora.modulesToSave has '{name}', which names no module; {_near(existing, name)}."
            )
    saved = list(dict.fromkeys([*(full for name in names for full in _matches(existing, name)), *fresh]))
    _refuse_tied(model, saved)
    return saved


def _default(model: PreTrainedModel) -> Sequence[str]:
    kind = model.config.model_type
    if kind in VISION_MODELS:
        existing = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
        return next((names for names in QUERY_AND_VALUE if existing.issuperset(names)), QUERY_AND_VALUE[0])
    if kind not in PEFT_DEFAULTS:
        raise LoraTargetError(
            f"spec.lora.targetModules is absent and peft has no default for '{kind}': name the layers."
        )
    return PEFT_DEFAULTS[kind]


def _all_linear(model: PreTrainedModel) -> list[str]:
    """Every nn.Linear and Conv1D except the output layer, which costs most and gains least (as in peft)."""
    output = model.get_output_embeddings()
    return [n for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D) and m is not output]


def _named(model: PreTrainedModel, names: Iterable[str]) -> list[str]:
    existing = [name for name, _ in model.named_modules()]
    for name in names:
        if not _matches(existing, name):
            raise LoraTargetError(
                f"spec.lora.targetModules has '{name}', which names no layer; {_near(existing, name)}."
            )
    return [full for full in existing if any(_is_end(full, name) for name in names)]


def _in_layers(names: Sequence[str], layers: Sequence[int]) -> list[str]:
    numbers = {name: int(match.group(1)) for name in names if (match := _LAYER.match(name))}
    missing = sorted(set(layers) - set(numbers.values()))
    if missing:
        known = sorted(set(numbers.values()))
        there = f"{known[0]} to {known[-1]}" if known else "not numbered"
        raise LoraTargetError(
            f"spec.lora.layers has {missing[0]}, but the layers to adapt are {there}: choose among those."
        )
    return [name for name in names if numbers.get(name) in layers]


def _refuse_tied(model: PreTrainedModel, saved: Sequence[str]) -> None:
    users: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        users.setdefault(id(parameter), []).append(name)
    for shared in users.values():
        if len(shared) > 1 and any(_inside(name, saved) for name in shared):
            raise UnsupportedModelError(
                f"spec.lora.modulesToSave trains '{shared[0]}', which is the same weight as '{shared[1]}': "
                "remove it, or use LoRA for it."
            )


def _is_end(full: str, name: str) -> bool:
    return full == name or full.endswith(f".{name}")


def _matches(existing: Iterable[str], name: str) -> list[str]:
    return [full for full in existing if _is_end(full, name)]


def _inside(name: str, modules: Iterable[str]) -> bool:
    """Whether `name` is one of `modules` or inside one."""
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


def _near(existing: Iterable[str], name: str) -> str:
    ends = {full.rsplit(".", 1)[-1] for full in existing if full} - {str(n) for n in range(1000)}
    near = difflib.get_close_matches(name.rsplit(".", 1)[-1], sorted(ends), n=3, cutoff=0.3)
    return f"near names: {', '.join(near)}" if near else "see the model's module names"
