"""What training goes on from: the optimiser and the place in the ledger, as safetensors and JSON. The schedule is pure.

Never pickled, and never with a secret stream's key: a resumed run draws new samples, noise and masks.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import torch
from safetensors.torch import load, save

from tensorguard.checkpoint.store import CheckpointCorrupt

OPTIMIZER = "optimizer.safetensors"
TRAINER_STATE = "trainer_state.json"


@dataclass(frozen=True)
class TrainerState:
    """Where a checkpoint stands. `ledger_head` and `ledger_length` are of the ledger when it was written: a shorter one
    is refused.
    """

    job_uid: str
    step: int
    attempt: int
    incarnation: int
    ledger_head: str
    ledger_length: int

    def dump(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def parse(cls, content: bytes) -> TrainerState:
        return cls(**json.loads(content))


def place_of(files: dict[str, bytes], where: str) -> TrainerState:
    """The place at which a checkpoint stands."""
    try:
        return TrainerState.parse(files[TRAINER_STATE])
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointCorrupt(
            f"{where} has no readable {TRAINER_STATE}; move it away to resume from another one"
        ) from error


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
