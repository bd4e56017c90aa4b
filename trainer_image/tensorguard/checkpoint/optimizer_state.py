"""What training goes on from: the optimiser's state, as safetensors. (The place in the ledger is `place`; the schedule
is pure.)

Never pickled, and never with a secret stream's key: a resumed run draws new samples, noise and masks.
"""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load, save

OPTIMIZER = "optimizer.safetensors"


def dump_optimizer(optimizer: torch.optim.Optimizer) -> bytes:
    """The state tensors of `optimizer`, named by the parameter's number and the state's name. Its settings come from
    the manifest.
    """
    tensors: dict[str, torch.Tensor] = {}
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            tensors[f"{number}.{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    return save(tensors)


def load_optimizer(optimizer: torch.optim.Optimizer, content: bytes) -> None:
    """Put back what `dump_optimizer` wrote."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in load(content).items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
