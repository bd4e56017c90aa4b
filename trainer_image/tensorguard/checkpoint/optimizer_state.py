"""The optimiser's state in a checkpoint, as safetensors, so that a run can resume.

`trainer_state` holds the step and the position in the ledger. The learning-rate schedule needs no state. Nothing is
pickled, and no key of a secret stream is stored: a resumed run draws new samples, noise and masks.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from safetensors.torch import load, save

from tensafe_api.reasons import Reason

OPTIMIZER = "optimizer.safetensors"


class OptimizerMismatchError(ValueError):
    """A checkpoint's optimizer state belongs to other parameters."""

    reason: ClassVar[Reason] = Reason.CONFIGURATION_CHANGED


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
    """Restore the state that `dump_optimizer` wrote.

    Raises:
        OptimizerMismatchError: the state belongs to other parameters; nothing is changed.
    """
    state: dict[int, dict[str, Any]] = {}
    for key, value in load(content).items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    trained = [tuple(state[number]["exp_avg"].shape) for number in sorted(state)]
    if state and trained != [tuple(parameter.shape) for parameter in parameters]:
        raise OptimizerMismatchError(
            f"spec.lora: the checkpoint has the optimizer state of {len(trained)} trained tensors, which are not the "
            f"{len(parameters)} that this job trains: resume with the same spec.lora"
        )
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
