"""The adapter: LoRA factors and whole modules that are trained, in fp32, the same on every rank.

In: a `BaseModel` and the manifest's `lora` block. Out: a peft model in train mode, whose dropout is seeded by record.
`privacy.gradients` then differentiates it, and `adapter` reads and writes its weights.

peft builds the factors; around it this module sees to what privacy needs. The draw of the initial factors comes from
`initSeed` alone. Modules that are trained whole stay in the base model's half precision with peft; they are raised to
fp32 here, with their inputs, because a bf16 weight would lose the optimiser's small steps and a bf16 gradient its
norm's last bits.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from torch import nn
from transformers.pytorch_utils import Conv1D

from tensorguard.models.dropout import use_record_dropout
from tensorguard.models.load import BaseModel, seeded
from tensorguard.models.targets import BadTarget, resolve_saved, resolve_targets
from tensorguard.models.unsupported import refuse_trainable

ADAPTER = "default"
"""peft's name for the one adapter that there is."""


def attach_lora(
    base: BaseModel,
    *,
    rank: int,
    alpha: int,
    dropout: float,
    init_seed: int,
    target_modules: Sequence[str] | None = None,
    layers: Sequence[int] = (),
    modules_to_save: Sequence[str] = (),
) -> PeftModel:
    """Attach a LoRA adapter; the fields are those of `spec.lora`.

    Returns a peft model in train mode: every trainable parameter is fp32, every other one is frozen, and dropout needs
    `record_seeds`. Raises BadTarget or Unsupported, one sentence each.
    """
    saved = resolve_saved(base.model, modules_to_save, base.fresh)
    targets = resolve_targets(base.model, target_modules, layers, saved)
    modules = dict(base.model.named_modules())
    config = LoraConfig(
        task_type=base.task.peft_type,
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=targets,
        modules_to_save=list(saved) or None,  # a copy: peft adds its own names for a head to the list
        fan_in_fan_out=all(isinstance(modules[name], Conv1D) for name in targets),
    )
    with seeded(init_seed), warnings.catch_warnings():
        # A model with both kinds of layer makes peft correct `fan_in_fan_out` for each, aloud.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")  # peft asks for it
        try:
            model = get_peft_model(base.model, config, adapter_name=ADAPTER)
        except ValueError as error:
            raise BadTarget(f"spec.lora does not fit the model, says peft: {error}") from error
    _check_places(base.model, targets, saved)
    model.peft_config[ADAPTER].modules_to_save = saved or None
    _raise_saved_modules(model, base)
    use_record_dropout(model)
    refuse_trainable(model)
    return model.train()


def trainable_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that training changes, in the one order that all vectors of length d follow."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _check_places(model: nn.Module, targets: Sequence[str], saved: Sequence[str]) -> None:
    """Raise BadTarget where peft, which matches by the ends of names, trains other modules than were asked for."""
    for kind, wanted in ((LoraLayer, targets), (ModulesToSaveWrapper, saved)):
        got = {name for name, module in model.named_modules() if isinstance(module, kind)}
        for name in sorted(got ^ set(wanted)):
            would = "would" if name in got else "would not"
            raise BadTarget(
                f"spec.lora: peft {would} train '{name}', because it tells modules apart by the ends of their names: "
                "choose targetModules and modulesToSave without such a namesake."
            )


def _raise_saved_modules(model: PeftModel, base: BaseModel) -> None:
    """Make the modules that are trained whole fp32; a head's output stays fp32, any other's goes back to the base's."""
    outputs = [base.model.get_output_embeddings(), *(getattr(base.model, name, None) for name in base.fresh)]
    for wrapper in [module for module in model.modules() if isinstance(module, ModulesToSaveWrapper)]:
        trained = wrapper.modules_to_save[ADAPTER]
        for part in trained.modules():
            if isinstance(part, nn.Embedding):
                part.padding_idx = None  # autograd would drop the pad row's gradient; Opacus would not
        before = {parameter.dtype for parameter in trained.parameters()}
        if before <= {torch.float32}:
            continue
        trained.float()
        wrapper.register_forward_pre_hook(_to_float32, with_kwargs=True)
        if not any(wrapper is output for output in outputs):
            wrapper.register_forward_hook(_Back(before.pop()))


def _to_float32(
    _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Forward pre-hook: every float tensor among the inputs as fp32."""

    def up(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return tuple(map(up, args)), {name: up(value) for name, value in kwargs.items()}


class _Back:
    """Forward hook: the output in the dtype that the next layer of the base model expects."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, _module: nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
        return output.to(self.dtype)
