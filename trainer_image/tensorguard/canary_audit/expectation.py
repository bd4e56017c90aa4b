"""Which bound to expect of an audit, and how many guesses to make: computed before the audit, from public figures.

The scores of a mechanism that runs as claimed are known: the score of a canary that is out is Gaussian noise of
variance T·σ², that of a canary that is in has Binomial(T, q) clip norms more. So the attack can be simulated without
running a step. A user needs the result to read an audit: a low bound is no sign of privacy where a low bound is
expected, and an audit whose largest possible bound is below the claim cannot refute the claim.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from tensorguard.canary_audit.lower_bound import Guesses, GuessPlan

_SIMULATED_RUNS = 200
_TRIAL_RUNS = 20
_HEADROOM = 1.2
"""The number of guesses is chosen so that an attack without errors would refute 1.2 times the claimed ε, if it can."""


@dataclass(frozen=True)
class ClaimedSteps:
    """The mechanism under audit, as it is claimed: `steps` steps of rate q and noise σ, and their ε at `delta`."""

    sample_rate: float
    noise_multiplier: float
    steps: int
    delta: float
    epsilon: float


@dataclass(frozen=True)
class Expectation:
    """What an audit of a mechanism that runs as claimed shows.

    Attributes:
        low, median, high: the one-run bound in 5, 50 and 95 % of all audits.
        largest: the one-run bound if every guess were right.
    """

    low: float
    median: float
    high: float
    largest: float


def choose_guesses(claimed: ClaimedSteps, canaries: int, significance: float) -> GuessPlan:
    """The number of guesses with the highest expected bound among those that can refute the claim.

    Where no number can, the one with the highest expected bound. Either both sides have equally many guesses, or all
    guesses are "in": at a low sampling rate, a high score shows that a canary joined, and a low score shows little.
    """
    sides = sorted({int(k) for k in np.geomspace(1, canaries // 2, 40)})
    candidates = [GuessPlan(k, lowest) for k in sides for lowest in (0, k)]
    correct = _simulated_correct(claimed, canaries, candidates, _TRIAL_RUNS, seed=1).mean(axis=0)

    def bound(plan: GuessPlan, right: float) -> float:
        return Guesses(canaries, plan.total, int(right)).lower_bound(claimed.delta, significance)

    can_refute = [plan for plan in candidates if bound(plan, plan.total) >= _HEADROOM * claimed.epsilon]
    expected = {plan: bound(plan, right) for plan, right in zip(candidates, correct)}
    return max(can_refute or candidates, key=lambda plan: expected[plan])


def expect(claimed: ClaimedSteps, canaries: int, plan: GuessPlan, significance: float) -> Expectation:
    """The bounds of simulated audits of the claimed mechanism. The same arguments give the same result."""
    correct = _simulated_correct(claimed, canaries, [plan], _SIMULATED_RUNS, seed=2)[:, 0]

    @functools.cache
    def bound(right: int) -> float:
        return Guesses(canaries, plan.total, right).lower_bound(claimed.delta, significance)

    low, median, high = np.quantile([bound(int(right)) for right in correct], (0.05, 0.5, 0.95))
    return Expectation(float(low), float(median), float(high), bound(plan.total))


def _simulated_correct(
    claimed: ClaimedSteps, canaries: int, plans: list[GuessPlan], runs: int, seed: int
) -> np.ndarray:
    """The number of correct guesses in simulated audits, int [runs, len(plans)]."""
    generator = np.random.default_rng(seed)
    inside, outside = (np.array(side) for side in zip(*((plan.highest, plan.lowest) for plan in plans)))
    found = []
    for _ in range(runs):
        included = generator.random(canaries) < 0.5
        noise = generator.normal(scale=claimed.noise_multiplier * np.sqrt(claimed.steps), size=canaries)
        joined = generator.binomial(claimed.steps, claimed.sample_rate, size=canaries)
        ordered = included[np.argsort(noise + included * joined)]
        highest, lowest = (np.concatenate([[0], right.cumsum()]) for right in (ordered[::-1], ~ordered))
        found.append(highest[inside] + lowest[outside])
    return np.array(found)
