"""ε of steps with different noise or sampling, for planning a training or checking its figures by hand.

This is the accountant of a job with `accountant_type="rdp"`: dp-accounting's Rényi accountant, at a δ from which the
noise sampler's share is subtracted. PLD, the default accountant of a job, gives a smaller ε for the same steps. The
figures hold under add-or-remove-one and under zero-out adjacency. Steps add up at each Rényi order. Their ε do not add
up, and neither do the squares of their ε.

>>> accountant = DistributedRDPAccountant(target_epsilon=8.0, target_delta=1e-5)
>>> accountant.step(noise_multiplier=1.5, sample_rate=0.04, steps=2250)
>>> epsilon, delta = accountant.get_epsilon()
>>> round(epsilon, 3), delta
(7.329, 1e-05)
"""

from __future__ import annotations

import math
import warnings
from collections import Counter

from tensafe_api.accounting import composition
from tensafe_api.resources.mechanism import PrivacyEvent
from tensafe_api.resources.numeric import MAX_SIGMA, MIN_DELTA, MIN_SIGMA
from tensorguard.distributed._config import require_float, require_int
from tensorguard.distributed._errors import ConfigurationError

_MAX_STEPS = 2**31 - 1
_NO_STEP = (
    "no step was counted so far, so ε is 0: call step(noise_multiplier=..., sample_rate=...) for each training step. "
    "During fit, trainer.epsilon_spent is the ε of the ledger"
)


class DistributedRDPAccountant:
    """Counts steps of Poisson sampling with Gaussian noise. The number of workers that share a step does not matter."""

    def __init__(self, target_epsilon: float, target_delta: float) -> None:
        """Start with no steps.

        Args:
            target_epsilon: above 0.
            target_delta: at least 1e-300 and below 1.

        Raises:
            ConfigurationError: if one of them is out of its range.
        """
        self.target_epsilon = _above_zero("target_epsilon", target_epsilon)
        self.target_delta = _delta(target_delta)
        self._steps: Counter[tuple[float, float]] = Counter()

    def step(self, *, noise_multiplier: float, sample_rate: float, steps: int = 1) -> None:
        """Count `steps` steps in which each unit joins with probability `sample_rate`, and the noise's standard
        deviation is `noise_multiplier` clip norms.

        Raises:
            ConfigurationError: if a figure is out of its range; nothing was counted.
        """
        mechanism = _mechanism(noise_multiplier, sample_rate)
        count = require_int("steps", steps)
        if not 0 <= count <= _MAX_STEPS:
            raise ConfigurationError(f"steps: must be from 0 to {_MAX_STEPS}, not {steps}")
        self._steps[mechanism] += count

    def get_epsilon(self, target_delta: float | None = None) -> tuple[float, float]:
        """(ε, δ) of all steps so far, at `target_delta` or the accountant's own. Infinite if no bound is finite.

        Before the first step ε is 0, with a warning: code that forgets to count its steps would print 0 for ever.
        """
        if not self._steps.total():
            warnings.warn(_NO_STEP, stacklevel=2)
        delta = self.target_delta if target_delta is None else _delta(target_delta)
        return _epsilon(self._steps, delta), delta

    @property
    def remaining_epsilon(self) -> float:
        """target_epsilon minus the ε spent; 0 if that is negative. ε do not add up: use `remaining_steps` to plan."""
        return max(0.0, self.target_epsilon - _epsilon(self._steps, self.target_delta))

    def remaining_steps(self, *, noise_multiplier: float, sample_rate: float, at_most: int = 1_000_000) -> int:
        """The number of further steps of this kind, up to `at_most`, that keep target_epsilon."""
        mechanism = _mechanism(noise_multiplier, sample_rate)

        def fits(steps: int) -> bool:
            return _epsilon(self._steps + Counter({mechanism: steps}), self.target_delta) <= self.target_epsilon

        low, high = 0, require_int("at_most", at_most) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


def _epsilon(counted: Counter[tuple[float, float]], delta: float) -> float:
    events = [
        PrivacyEvent(sample_rate=repr(rate), noise_multiplier=repr(sigma), steps=steps)
        for (sigma, rate), steps in counted.items()
    ]
    return composition.epsilon_of_events(events, composition.job_delta(repr(delta)))


def _mechanism(noise_multiplier: float, sample_rate: float) -> tuple[float, float]:
    rate = require_float("sample_rate", sample_rate)
    if not 0 < rate <= 1:
        raise ConfigurationError(f"sample_rate: must be above 0 and at most 1, not {sample_rate!r}")
    sigma = _above_zero("noise_multiplier", noise_multiplier)
    if not MIN_SIGMA <= sigma <= MAX_SIGMA:
        raise ConfigurationError(
            f"noise_multiplier: must be from {MIN_SIGMA:g} to {MAX_SIGMA:g}, not {noise_multiplier!r}"
        )
    return sigma, rate


def _delta(value: float) -> float:
    delta = require_float("target_delta", value)
    if not MIN_DELTA <= delta < 1:
        raise ConfigurationError(f"target_delta: must be at least {MIN_DELTA} and below 1, not {value!r}")
    return delta


def _above_zero(name: str, value: float) -> float:
    found = require_float(name, value)
    if not 0 < found < math.inf:
        raise ConfigurationError(f"{name}: must be a finite number above 0, not {value!r}")
    return found
