"""How finely PLD samples privacy losses: fine enough that ε hardly grows, and coarse enough for time and memory."""

from __future__ import annotations

import math
from collections.abc import Iterable

_MIN, _MAX = 1e-5, 1e-3
"""Below the smallest interval of privacy losses, the rounding of their probabilities matters."""


def loss_interval(kinds: Iterable[tuple[float, float]]) -> float:
    """The interval at which PLD samples the privacy losses of steps, of which there are these kinds (q, σ).

    A coarser one is faster, and gives a larger ε: each step adds about its square to the variance of the loss. With
    1/32 of the smallest standard deviation, ε grows by less than 1e-4 of itself. Rare, large losses get up to 60,000
    intervals. The interval must not depend on the number of steps, so that ε never falls with a further step.

    With several kinds it is a power of two. While σ is sought, the distributions of the other kinds can then be reused.
    It is at least an eighth of what the widest kind alone would have: a kind with almost no loss needs no finer one.
    """
    kinds = set(kinds)
    largest = max((largest_loss(*kind) for kind in kinds), default=0.0)
    spreads = [rate * math.sqrt(math.expm1(min(noise_multiplier**-2, 700.0))) for rate, noise_multiplier in kinds]

    def limited(spread: float) -> float:
        return min(max(spread / 32, largest / 60_000, _MIN), _MAX)

    if len(kinds) < 2:
        return limited(min(spreads, default=math.inf))
    interval = max(limited(min(spreads)), limited(max(spreads)) / 4)
    return max(2.0 ** math.floor(math.log2(interval)), _MIN)


def largest_loss(sample_rate: float, noise_multiplier: float) -> float:
    """The largest privacy loss of one step. dp-accounting cuts the noise at ten standard deviations."""
    exponent = min((0.5 / noise_multiplier + 10.0) / noise_multiplier, 700.0)
    return math.log1p(sample_rate * math.expm1(exponent))
