"""The adapter: LoRA factors and modules that are trained in full, in fp32, the same on every rank.

In: a `BaseModel` and the manifest's `lora` block. Out: a peft model in training mode, whose dropout is seeded by
record. Then `privacy.gradients` differentiates it, and `adapter` reads and writes its weights.

peft creates the factors. This module adds what privacy needs. The initial factors depend on `initSeed` alone. Modules
that are trained in full would stay in the base model's half precision with peft. Here they and their inputs are cast to
fp32: a bf16 weight would lose the small steps of the optimiser, and a bf16 gradient the last bits of its norm.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from peft.utils.constants import DUMMY_TARGET_MODULES
from torch import nn
from transformers.pytorch_utils import Conv1D

from tensafe_api.resources.model import Lora
from tensafe_api.resources.numeric import parse_decimal
from tensorguard.models.dropout import use_record_dropout
from tensorguard.models.load import BaseModel, seeded
from tensorguard.models.targets import LoraTargetError, resolve_modules_to_save, resolve_targets
from tensorguard.models.unsupported import refuse_trainable

ADAPTER = "default"
"""peft's name for the only adapter."""


def attach_lora(
    base: BaseModel,
    *,
    rank: int,
    alpha: int,
    dropout: float,
    init_seed: int,
    target_modules: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    modules_to_save: Sequence[str] = (),
    variant: Literal["Standard", "FrozenA"] = "Standard",
) -> PeftModel:
    """Attach a LoRA adapter. The fields are those of `spec.lora`.

    Returns a peft model in training mode: every trainable parameter is fp32, every other one is frozen, and dropout
    needs `record_seeds`. Raises LoraTargetError or UnsupportedModelError, each with one sentence.
    """
    saved = resolve_modules_to_save(base.model, modules_to_save, base.fresh)
    targets = resolve_targets(base.model, target_modules, layers, saved) if layers != () else []
    modules = dict(base.model.named_modules())
    config = LoraConfig(
        task_type=base.task.peft_type,
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=targets or DUMMY_TARGET_MODULES,
        modules_to_save=list(saved) or None,  # a copy, because peft appends its own names of a head
        fan_in_fan_out=bool(targets) and all(isinstance(modules[name], Conv1D) for name in targets),
    )
    with seeded(init_seed), warnings.catch_warnings():
        # If a model has both kinds of layer, peft corrects `fan_in_fan_out` for each and warns.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")  # peft reads it
        try:
            model = get_peft_model(base.model, config, adapter_name=ADAPTER)
        except ValueError as error:
            raise LoraTargetError(f"spec.lora does not fit the model, peft reports: {error}") from error
    _check_adapted_modules(base.model, targets, saved)
    cast(LoraConfig, model.peft_config[ADAPTER]).modules_to_save = saved or None
    _cast_saved_modules(model, base)
    if variant == "FrozenA":
        _freeze_first_factors(model)
    use_record_dropout(model)
    refuse_trainable(model)
    return model.train()


def attach_lora_of(lora: Lora, base: BaseModel) -> PeftModel:
    """Attach the adapter of `spec.lora`, as `attach_lora` does."""
    return attach_lora(
        base,
        rank=lora.rank,
        alpha=lora.alpha or 2 * lora.rank,
        dropout=parse_decimal(lora.dropout),
        init_seed=lora.init_seed,
        target_modules=lora.target_modules or None,
        layers=lora.layers,
        modules_to_save=lora.modules_to_save,
        variant=lora.variant,
    )


def trainable_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that training changes, in the order of all vectors of length d."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def adapter_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Every parameter that the adapter adds to the base, trained or frozen (`variant: FrozenA`)."""
    added: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, LoraLayer):
            parts = [getattr(module, name) for name in module.adapter_layer_names]
        elif isinstance(module, ModulesToSaveWrapper):
            parts = [module.modules_to_save]
        else:
            continue
        added.update(parameter for part in parts for parameter in part.parameters())
    return added


def _check_adapted_modules(model: nn.Module, targets: Sequence[str], saved: Sequence[str]) -> None:
    """Raise LoraTargetError if peft, which matches the ends of names, adapts other modules than the requested ones."""
    for kind, wanted in ((LoraLayer, targets), (ModulesToSaveWrapper, saved)):
        got = {name for name, module in model.named_modules() if isinstance(module, kind)}
        for name in sorted(got ^ set(wanted)):
            would = "would" if name in got else "would not"
            raise LoraTargetError(
                f"spec.lora: peft {would} train '{name}', because it matches modules by the ends of their names: "
                "choose targetModules and modulesToSave whose names no other module ends in."
            )


def _freeze_first_factors(model: nn.Module) -> None:
    for layer in (module for module in model.modules() if isinstance(module, LoraLayer)):
        layer.lora_A[ADAPTER].requires_grad_(False)


def _cast_saved_modules(model: PeftModel, base: BaseModel) -> None:
    """Cast modules that are trained in full to fp32. Outputs of heads stay fp32, others return to the base's dtype."""
    outputs = [base.model.get_output_embeddings(), *(getattr(base.model, name, None) for name in base.fresh)]
    for wrapper in [module for module in model.modules() if isinstance(module, ModulesToSaveWrapper)]:
        trained = wrapper.modules_to_save[ADAPTER]
        for part in trained.modules():
            if isinstance(part, nn.Embedding):
                part.padding_idx = None  # autograd would drop the gradient of the pad row, Opacus would not
        before = {parameter.dtype for parameter in trained.parameters()}
        if before <= {torch.float32}:
            continue
        trained.float()
        wrapper.register_forward_pre_hook(_to_float32, with_kwargs=True)
        if not any(wrapper is output for output in outputs):
            wrapper.register_forward_hook(_CastOutput(before.pop()))


def _to_float32(
    _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Forward pre-hook: casts every float tensor among the inputs to fp32."""

    def up(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return tuple(map(up, args)), {name: up(value) for name, value in kwargs.items()}


class _CastOutput:
    """Forward hook: casts the output to the dtype that the next layer of the base model expects."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, _module: nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
        return output.to(self.dtype)
