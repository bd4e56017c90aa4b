"""Refuses models that cannot be trained record by record, before the first step and by name.

In: a config, a base model, or a model with its adapter attached. Out: nothing, or one sentence that names the field or
the module. `load` and `lora` call these functions. Then `self_test` measures what no list can foresee.

The list contains layers that read more than one record, or that have no per-example gradient. Batch norm uses the
statistics of the batch. In a mixture of experts, the tokens of the batch share capacity and kernels. A byte latent
transformer groups bytes, and its shapes depend on the largest number of groups in the batch. Dynamic rotary scaling
stores the longest batch so far. DoRA and embedding LoRA have no rule for per-example gradients.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import nn
from transformers import PreTrainedConfig

from tensafe_api.reasons import Reason

_EXPERT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


class UnsupportedModelError(ValueError):
    """The model or the adapter cannot be trained with a bound for each record. The message names the cause."""

    reason: ClassVar[Reason] = Reason.MODEL_UNSUPPORTED


def configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """A config and the configs of its parts, such as `text_config`."""
    yield config
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig):
            yield from configs(part)


def refuse_config(config: PreTrainedConfig) -> None:
    """Raise UnsupportedModelError for an encoder-decoder, experts, groups of bytes, dynamic scaling or quantisation."""
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError("spec.model.name is an encoder-decoder: choose an encoder or a decoder.")
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModelError(
            "spec.model.name has quantised weights: choose the model's fp32, bf16 or fp16 weights."
        )
    for part in configs(config):
        for field in _EXPERT_FIELDS:
            if (getattr(part, field, None) or 0) > 1:
                raise UnsupportedModelError(
                    f"spec.model.name is a mixture of experts ({field}: {getattr(part, field)}), whose experts process "
                    "the whole batch at once: choose a dense model."
                )
        if part.model_type == "blt":
            raise UnsupportedModelError(
                "spec.model.name is a byte latent transformer, which computes all records of a batch in as many groups "
                "of bytes as one of them needs: choose a model that reads tokens."
            )
        rope = getattr(part, "rope_parameters", None) or {}
        scalings = [scaling for scaling in (rope, *rope.values()) if isinstance(scaling, dict)]
        if any(scaling.get("rope_type") == "dynamic" for scaling in scalings):
            raise UnsupportedModelError(
                "spec.model.name has dynamic rotary scaling, which depends on earlier batches: choose another model."
            )


def refuse_base(model: nn.Module) -> None:
    """Raise UnsupportedModelError if a base model mixes the records of a batch."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModelError(
                f"spec.model.name: '{name}' is batch norm, which averages over the batch: choose another model."
            )


def refuse_trainable(model: nn.Module) -> None:
    """Raise UnsupportedModelError if a trainable parameter of a peft model has no per-example gradient."""
    refuse_base(model)
    owners: dict[int, str] = {}
    for module_name, module in model.named_modules():
        own = list(module.named_parameters(recurse=False))
        for name, parameter in own:
            full = f"{module_name}.{name}"
            other = owners.setdefault(id(parameter), full)
            if not parameter.requires_grad:
                continue
            if other != full:
                raise UnsupportedModelError(
                    f"spec.lora: '{full}' and '{other}' are one parameter: a trainable parameter must not be tied."
                )
            if "lora_magnitude_vector" in full:
                raise UnsupportedModelError(
                    f"spec.lora: '{full}' belongs to DoRA, which has no per-example gradient: use plain LoRA."
                )
            if "lora_embedding" in full:
                raise UnsupportedModelError(
                    f"spec.lora: '{full}' is LoRA on an embedding, which is not supported: target linear layers."
                )
            if parameter.dtype != torch.float32:
                raise UnsupportedModelError(
                    f"spec.lora: '{full}' is {parameter.dtype}: trainable parameters must be float32."
                )
        if any(parameter.requires_grad for _, parameter in own) and any(True for _ in module.buffers()):
            raise UnsupportedModelError(
                f"spec.lora: '{module_name}' has buffers that a batch could change: do not train it."
            )
