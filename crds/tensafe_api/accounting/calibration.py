"""Finds σ from ε: the least noise that keeps a target."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from decimal import Decimal

from tensafe_api.accounting import composition
from tensafe_api.accounting.composition import AccountantName
from tensafe_api.accounting.root_search import first_at_most_zero
from tensafe_api.resources.mechanism import PrivacyEvent, round_up

MIN_CALIBRATED_SIGMA = 0.05
"""The smallest σ that calibration returns. A target so loose that less noise would suffice gets this σ."""

MAX_CALIBRATED_SIGMA = 2.0**14
"""The largest σ that calibration returns. Eight standard deviations of a larger σ would exceed the coarsest integer
grid (`resolve`)."""

SIGMA_DIGITS = 6
_SIGMA_PLACES: int = 10**SIGMA_DIGITS
_LEAST, _MOST = int(MIN_CALIBRATED_SIGMA * _SIGMA_PLACES), int(MAX_CALIBRATED_SIGMA * _SIGMA_PLACES)
"""The limits of σ. A search uses whole numbers of the last digit."""


class CalibrationError(ValueError):
    """No noise multiplier that fits the integer grid reaches the target."""


def calibrate(
    *,
    target_epsilon: float,
    sample_rate: float,
    steps: int,
    delta: float,
    accountant: AccountantName = "RDP",
    earlier: tuple[PrivacyEvent, ...] = (),
) -> str:
    """The smallest σ with six decimals whose ε over `steps` steps, after `earlier`, is at most `target_epsilon`.

    ε is computed from the returned string, so the claim holds for exactly the figure that is stored and used.

    Raises:
        CalibrationError: not even σ = 2^14 reaches the target.
    """
    return _calibrate(target_epsilon, sample_rate, steps, delta, accountant, earlier)


@functools.lru_cache(maxsize=composition.FIGURES_KEPT)
def _calibrate(
    target_epsilon: float,
    sample_rate: float,
    steps: int,
    delta: float,
    accountant: AccountantName,
    earlier: tuple[PrivacyEvent, ...],
) -> str:
    """The smallest six-decimal σ that meets the target."""

    @functools.cache  # of this search: the σ that it tries are those of no job
    def spent(places: int, by: AccountantName) -> float:
        return composition.epsilon_once(sample_rate, float(_sigma(places)), delta, by, earlier, steps)

    def fits(places: int, by: AccountantName = accountant) -> bool:
        return spent(places, by) <= target_epsilon

    def excess(places: int) -> float:
        """ln(ε / target), at most 0 where σ meets the target. It is close to a straight line, so few steps suffice."""
        value = min(max(spent(places, accountant), math.ulp(0.0)), sys.float_info.max)  # has a finite logarithm
        distance = math.log(value) - math.log(target_epsilon)
        return min(distance, 0.0) if value <= target_epsilon else max(distance, math.ulp(1.0))

    def by_rdp() -> int:
        """The smallest σ by RDP; 1 where the earlier events alone exceed the target by RDP."""
        try:
            return int(Decimal(_calibrate(target_epsilon, sample_rate, steps, delta, "RDP", earlier)) * _SIGMA_PLACES)
        except CalibrationError:
            if not earlier:
                raise
            return _SIGMA_PLACES

    if fits(_LEAST, "RDP"):
        return _sigma(_LEAST)
    if accountant == "RDP":
        low, high = _bracket(fits, _LEAST, _SIGMA_PLACES)
    else:  # PLD is slow with a small σ, so its search starts near its end
        high = by_rdp()
        low, high = _bracket(fits, max(_LEAST, high * 7 // 8), high)
    if not fits(high):
        raise CalibrationError(f"no noise multiplier reaches ε {target_epsilon:g} over {steps} steps")
    return _sigma(first_at_most_zero(excess, low, high))


def _bracket(fits: Callable[[int], bool], low: int, high: int) -> tuple[int, int]:
    """A σ that does not meet the target and one that does, from a guess of both. Twice the least one if that meets it;
    the second is the largest one if none does.
    """
    while fits(low):
        if low == _LEAST:
            return low, low
        low, high = max(_LEAST, low * 7 // 8), low
    while high < _MOST and not fits(high):
        low, high = high, min(_MOST, 2 * high)
    return low, high


def _sigma(places: int) -> str:
    return round_up(Decimal(places).scaleb(-SIGMA_DIGITS), SIGMA_DIGITS)
