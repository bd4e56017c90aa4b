"""The learning rate of each step: warm-up, then linear, cosine or constant. Pure, so a resumed run needs no state for
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

Shape = Literal["Linear", "Cosine", "Constant"]


def learning_rate_schedule(rate: float, shape: Shape, steps: int, warmup: int) -> Callable[[int], float]:
    """The learning rate of step number `step` (from 0): rising linearly over `warmup` steps, then falling to zero.

    The first step is at 1/(warmup+1) of `rate`, not at zero: a private step that moves nothing is paid for all the
    same.
    """

    def of(step: int) -> float:
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

    return of
