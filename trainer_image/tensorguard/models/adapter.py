"""The adapter's weights and config, in the shape that plain peft loads.

In: a model from `lora`. Out: tensors and a config for `adapter_model.safetensors` and `adapter_config.json`, which
`checkpoint` writes; back in: the tensors of a checkpoint. With them, `PeftModel.from_pretrained(base, directory)` gives
the trained model with nothing of ours installed: our dropout and our hooks hold no tensors, so no key tells of them.

For a model that came from an installed package the config names the package, which peft cannot look up: load the base
model first and pass it. A hub id or a path works with `AutoPeftModel...` too.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from peft import PeftModel, get_peft_model_state_dict

from tensafe_api.reasons import Reason
from tensorguard.models.lora import ADAPTER
from tensorguard.models.source import ModelSource


class AdapterMismatch(ValueError):
    """A checkpoint's adapter does not fit this model; the message names the first difference."""

    reason: ClassVar[Reason] = Reason.CONFIGURATION_CHANGED


def adapter_state(model: PeftModel) -> dict[str, torch.Tensor]:
    """All trained weights by peft's key: fp32 copies on the CPU, contiguous, sorted by key."""
    return {key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in _live_state(model).items()}


def load_adapter_state(model: PeftModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a checkpoint's weights into the model's own parameters, exactly.

    The parameters stay the same objects, so an optimiser and `PerExampleGradients` built before still hold them. Raises
    AdapterMismatch, and changes nothing, where a key, a shape or a dtype differs.
    """
    live = _live_state(model)
    for key in sorted(live.keys() ^ tensors.keys()):
        where = "the checkpoint" if key in live else "the model"
        raise AdapterMismatch(f"the adapter's weight '{key}' is missing in {where}: resume with the same spec.lora.")
    for key, tensor in tensors.items():
        if tensor.shape != live[key].shape or tensor.dtype != live[key].dtype:
            raise AdapterMismatch(
                f"the adapter's weight '{key}' is {tensor.dtype} {list(tensor.shape)} in the checkpoint and "
                f"{live[key].dtype} {list(live[key].shape)} in the model: resume with the same spec.lora."
            )
    with torch.no_grad():
        for key, tensor in tensors.items():
            live[key].copy_(tensor)


def adapter_config(model: PeftModel, source: ModelSource) -> dict[str, Any]:
    """The content of `adapter_config.json`: plain JSON values; base model and revision as `source` has them."""
    config = model.peft_config[ADAPTER].to_dict()
    config |= {"base_model_name_or_path": source.name, "revision": source.revision, "inference_mode": True}
    return {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}


def _live_state(model: PeftModel) -> dict[str, torch.Tensor]:
    """The tensors themselves, under peft's keys. `save_embedding_layers` off: peft would ask the hub about them."""
    state = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
    return dict(sorted(state.items()))
