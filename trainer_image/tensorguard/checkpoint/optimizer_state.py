"""The optimiser's state in a checkpoint, as safetensors, so that a run can resume.

`trainer_state` holds the step and the position in the ledger. The learning-rate schedule needs no state. Nothing is
pickled, and no key of a secret stream is stored: a resumed run draws new samples, noise and masks.
"""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load, save

OPTIMIZER = "optimizer.safetensors"


def dump_optimizer(optimizer: torch.optim.Optimizer) -> bytes:
    """The state tensors of `optimizer`, each named by the parameter's number and the state's name. Settings such as the
    learning rate are not included: they come from the manifest.
    """
    tensors: dict[str, torch.Tensor] = {}
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            tensors[f"{number}.{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    return save(tensors)


def load_optimizer(optimizer: torch.optim.Optimizer, content: bytes) -> None:
    """Restore the state that `dump_optimizer` wrote."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in load(content).items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
