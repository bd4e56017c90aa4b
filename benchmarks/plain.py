"""A step of this project's trainer without privacy: what the cost of privacy is compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tensorguard.data.batches import micro_batches
from tensorguard.data.rows import Rows
from tensorguard.data.shard import Shard
from tensorguard.models.batch_losses import LossFunction
from tensorguard.training.unit_gradients import model_inputs


def plain_step(
    model: nn.Module,
    loss: LossFunction,
    optimizer: torch.optim.Optimizer,
    shard: Shard,
    *,
    micro_batch: int,
    form: Rows,
    device: torch.device,
) -> Callable[[int], None]:
    """An ordinary step on every unit of `shard`, in the micro-batches of a private step.

    `model` must have no hooks of Opacus. The gradient is that of the mean of the units' losses.
    """

    def step(_: int) -> None:
        for batch in micro_batches(shard, range(len(shard)), size=micro_batch, form=form):
            (loss(model, model_inputs(batch, device)).sum() / len(shard)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
