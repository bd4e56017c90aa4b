"""The adapter's weights and config, in the form that plain peft loads.

In: a model from `lora`. Out: tensors and a config for `adapter_model.safetensors` and `adapter_config.json`, which
`checkpoint` writes. The tensors of a checkpoint can be loaded back. `PeftModel.from_pretrained(base, directory)` gives
the trained model without TenSafe installed: our dropout and our hooks hold no tensors, so they add no key.

If the model came from an installed package, the config names the package, and peft cannot find it. Then load the base
model first and pass it. A hub id or a path works with peft's `AutoPeftModel` classes too.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from peft import PeftModel, get_peft_model_state_dict

from tensafe_api.reasons import Reason
from tensorguard.models.lora import ADAPTER
from tensorguard.models.source import ModelSource

_FIX = "write the lora fields of the job that trained the adapter."


class AdapterMismatchError(ValueError):
    """A checkpoint's adapter does not fit this model. The message names the first difference."""

    reason: ClassVar[Reason] = Reason.CONFIGURATION_CHANGED


def adapter_state(model: PeftModel) -> dict[str, torch.Tensor]:
    """All trained weights by peft's key: contiguous fp32 copies on the CPU, sorted by key."""
    return {key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in _live_state(model).items()}


def load_adapter_state(model: PeftModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy a checkpoint's weights into the model's parameters, exactly.

    The parameters stay the same objects, so an optimiser and `PerExampleGradients` that exist already remain valid.
    Raises AdapterMismatchError, and changes nothing, if a key, a shape or a dtype differs.
    """
    live = _live_state(model)
    for key in sorted(live.keys() ^ tensors.keys()):
        where = "the checkpoint" if key in live else "the model"
        raise AdapterMismatchError(f"spec.lora: the adapter's weight '{key}' is missing in {where}: {_FIX}")
    for key, tensor in tensors.items():
        if tensor.shape != live[key].shape or tensor.dtype != live[key].dtype:
            raise AdapterMismatchError(
                f"spec.lora: the adapter's weight '{key}' is {tensor.dtype} {list(tensor.shape)} in the checkpoint and "
                f"{live[key].dtype} {list(live[key].shape)} in the model: {_FIX}"
            )
    with torch.no_grad():
        for key, tensor in tensors.items():
            live[key].copy_(tensor)


def adapter_config(model: PeftModel, source: ModelSource) -> dict[str, Any]:
    """The content of `adapter_config.json` as plain JSON values. Base model and revision come from `source`."""
    config = model.peft_config[ADAPTER].to_dict()
    config |= {"base_model_name_or_path": source.name, "revision": source.revision, "inference_mode": True}
    return {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}


def _live_state(model: PeftModel) -> dict[str, torch.Tensor]:
    """The tensors themselves, by peft's keys. With `save_embedding_layers`, peft would send a request to the hub."""
    state = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
    return dict(sorted(state.items()))
