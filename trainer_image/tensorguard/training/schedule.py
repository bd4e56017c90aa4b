"""The learning rate of each step: warm-up, then linear, cosine or constant.

It is a pure function of the step, so a resumed run needs no state for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

Shape = Literal["Linear", "Cosine", "Constant"]


def learning_rate_schedule(rate: float, shape: Shape, steps: int, warmup: int) -> Callable[[int], float]:
    """A function from the number of a step (from 0) to its learning rate.

    The rate rises linearly over `warmup` steps to `rate`. Then it falls to zero at `steps`, or stays constant. The
    first step has 1/(warmup+1) of `rate`, not zero: a private step costs privacy even if it does not change the model.
    """

    def rate_of(step: int) -> float:
        if step < warmup:
            return rate * (step + 1) / (warmup + 1)
        done = min(1.0, (step - warmup) / max(1, steps - warmup))
        match shape:
            case "Constant":
                return rate
            case "Cosine":
                return rate * 0.5 * (1.0 + math.cos(math.pi * done))
            case "Linear":
                return rate * (1.0 - done)

    return rate_of
