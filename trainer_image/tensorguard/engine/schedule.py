"""Learning rates over the steps: warm-up, then linear, cosine or constant."""

from __future__ import annotations

import math
from typing import Literal

import torch

Shape = Literal["Linear", "Cosine", "Constant"]


def schedule(
    optimizer: torch.optim.Optimizer, shape: Shape, steps: int, warmup: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """The learning rate rises linearly over `warmup` steps, then falls to zero at `steps`, or stays.

    The first step is at 1/(warmup+1) of the full rate, not at zero: a private step that moves nothing would be paid for
    all the same.
    """

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        done = (step - warmup) / max(1, steps - warmup)
        match shape:
            case "Constant":
                return 1.0
            case "Cosine":
                return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
            case "Linear":
                return max(0.0, 1.0 - done)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
