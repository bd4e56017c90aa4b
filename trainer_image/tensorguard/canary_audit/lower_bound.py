"""Lower bounds of ε from the scores of canaries. In: numbers. Out: numbers; nothing is run here.

**The one-run bound** (Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run", arXiv 2305.08846).
Each of m canaries is in the data with probability 1/2, independently. The adversary sees the output of one run, makes r
guesses ("in" or "out") and abstains for the other canaries. If the mechanism is (ε, δ)-DP for neighbours that differ by
one added or removed record, then the number V of correct guesses is bounded (theorem 5.2 there, in the form that its
appendix D computes):

    P[V ≥ v]  ≤  β + 2·m·δ·α        p = e^ε / (1 + e^ε),  X ~ Binomial(r, p)
    β = P[X ≥ v]                    α = max over 1 ≤ i ≤ m of P[v − i ≤ X < v] / i

The right-hand side is a p-value of the hypothesis "the mechanism is (ε, δ)-DP". The bound is the largest ε whose
p-value is at most the significance. Nothing is assumed about the noise, the canaries' independence of each other, or
how the guesses were made, as long as the coins are fair and independent. The number of guesses is fixed beforehand.

**The noise bound** assumes more, and is sharper. The score of a canary that is not in the data is noise alone. If it is
Gaussian with mean 0, the sum of n squared scores over the variance has a χ² distribution with n degrees of freedom, so

    σ_upper = √(Σ score² / (T · χ²_n quantile of the significance))

is at least σ with probability 1 − significance, for T steps. The ε of the job's own accountant for σ_upper is then a
lower bound of the ε of the steps as they ran. Other contributions to the scores only raise σ_upper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

_LARGEST_EPSILON = 40.0
"""Above it, e^ε/(1 + e^ε) is 1 in floating point, so no number of guesses refutes a larger ε."""
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Guesses:
    """The result of an attack: of `canaries` canaries it guessed `guesses`, of which `correct` are right."""

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.guesses <= self.canaries:
            raise ValueError(f"these numbers of canaries, guesses and correct guesses are impossible: {self}")

    def p_value(self, epsilon: float, delta: float) -> float:
        """An upper bound of the probability of so many correct guesses if the mechanism is (ε, δ)-DP, at most 1."""
        p = special.expit(epsilon)
        beta = float(stats.binom.sf(self.correct - 1, self.guesses, p))
        if delta == 0 or self.correct == 0:
            return min(1.0, beta)
        shortfall = np.arange(1, self.correct + 1)  # a larger i adds nothing: X has no value below 0
        within = stats.binom.sf(self.correct - shortfall - 1, self.guesses, p) - beta
        alpha = float((within / shortfall).max())
        return min(1.0, beta + 2 * self.canaries * delta * alpha)

    def lower_bound(self, delta: float, significance: float) -> float:
        """The largest ε that these guesses refute at `delta`, with confidence 1 − `significance`; 0 if none.

        It is valid even where the p-value is not monotone in ε: an ε that is refuted refutes every smaller one, since
        a mechanism that is (ε, δ)-DP is also (ε′, δ)-DP for each larger ε′.
        """

        def excess(epsilon: float) -> float:
            return self.p_value(epsilon, delta) - significance

        if excess(0.0) >= 0:
            return 0.0
        if excess(_LARGEST_EPSILON) < 0:
            return _LARGEST_EPSILON
        root = float(optimize.brentq(excess, 0.0, _LARGEST_EPSILON, xtol=_TOLERANCE))
        return max(0.0, root - _TOLERANCE)


@dataclass(frozen=True)
class GuessPlan:
    """How many canaries the attack guesses, fixed before the scores are known.

    Attributes:
        highest: so many canaries with the highest scores are guessed to be in the data.
        lowest: so many with the lowest scores are guessed to be out.
    """

    highest: int
    lowest: int

    @property
    def total(self) -> int:
        return self.highest + self.lowest


def guess(scores: np.ndarray, included: np.ndarray, plan: GuessPlan) -> Guesses:
    """Guess as planned, and count the correct guesses.

    Args:
        scores: of all canaries, float64 [m]. Equal scores are ordered by the number of the canary.
        included: which canaries are in the data, bool [m].
        plan: at least one guess, and at most m.
    """
    if min(plan.highest, plan.lowest) < 0 or not 0 < plan.total <= len(scores):
        raise ValueError(f"{plan} has too few guesses, or too many for {len(scores)} canaries")
    order = np.argsort(scores, kind="stable")
    inside, outside = order[len(scores) - plan.highest :], order[: plan.lowest]
    return Guesses(len(scores), plan.total, int(included[inside].sum()) + int((~included[outside]).sum()))


def noise_at_most(scores: np.ndarray, steps: int, significance: float) -> float:
    """σ_upper: the standard deviation of one step's noise is at most this, if it is Gaussian.

    Args:
        scores: of canaries that are not in the data, each the sum over the steps, in clip norms: float64 [n].
        steps: T.
        significance: the probability that a larger σ gives such small scores.

    Returns:
        σ_upper in clip norms; infinity without scores.
    """
    if len(scores) == 0:
        return math.inf
    return math.sqrt(float((scores**2).sum()) / (steps * float(stats.chi2.ppf(significance, len(scores)))))
