"""The privacy claim in one sentence, and the limits that it sets to an attack.

In: a statement. Out: sentences and figures that a person can quote. Every limit is rounded up, so that no text promises
more than the claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext

from tensafe_api.statement.document import ClaimPart, StatementDocument

VERIFY = "tensafe verify DIR --public-key FILE"
"""The command that the page and the model card name, for the folder of the adapter and the signer's key."""
FALSE_ALARMS = Decimal("0.01")
"""Share of false alarms for which `attack_limits` gives the share of right ones."""
_UNITS = {
    "Example": ("record", "one record was", "any one record of the data set"),
    "User": ("user", "the records of one user were", "any one user"),
}
_SIGNIFICANT = 4
_LARGE = Decimal(10) ** 7
_DIGITS = 400
"""Enough for 1 plus the smallest δ."""
_LARGEST_WRITTEN = 10_000
"""An ε above it bounds no probability; e^ε would have thousands of digits."""


@dataclass(frozen=True)
class AttackLimits:
    """What no attack can exceed, as shares from 0 to 1.

    Attributes:
        accuracy: share of right answers to "was this unit in the data?", if both answers were as likely before.
        detected: share of units in the data that an attack finds, at `FALSE_ALARMS` false alarms.
    """

    accuracy: Decimal
    detected: Decimal


def attack_limits(epsilon: str, delta: str) -> AttackLimits:
    """The limits that (ε, δ) sets to a test of whether one unit was in the data.

    By Kairouz, Oh and Viswanath 2015, "The Composition Theorem for Differential Privacy": false alarms α and misses β
    of every test keep α + e^ε·β ≥ 1 − δ and e^ε·α + β ≥ 1 − δ. The best accuracy at even odds is (e^ε + δ)/(1 + e^ε).
    """
    with localcontext(prec=_DIGITS):
        slack = Decimal(delta)
        if not _is_moderate(epsilon):
            return AttackLimits(Decimal(1), Decimal(1))
        factor = Decimal(epsilon).exp()
        accuracy = (factor + slack) / (1 + factor)
        detected = min(factor * FALSE_ALARMS + slack, 1 - (1 - slack - FALSE_ALARMS) / factor, Decimal(1))
        return AttackLimits(min(accuracy, Decimal(1)), max(detected, FALSE_ALARMS))


def percent(share: Decimal) -> str:
    """A share as a number of percent with two decimals, rounded up."""
    with localcontext(prec=_DIGITS):
        return f"{(share * 100).quantize(Decimal('0.01'), rounding=ROUND_CEILING)}"


def factor_text(epsilon: str) -> str:
    """e^ε with four significant digits, rounded up, such as 1,526 or 4.852 × 10^8."""
    with localcontext(prec=_DIGITS):
        value = Decimal(epsilon).exp()
    with localcontext(prec=_SIGNIFICANT, rounding=ROUND_CEILING):
        rounded = +value
    if rounded >= _LARGE:
        mantissa, exponent = f"{rounded:.{_SIGNIFICANT - 1}E}".split("E")
        return f"{mantissa} × 10^{int(exponent)}"
    return f"{rounded:,f}"


def claim_sentence(document: StatementDocument) -> str:
    """The claim in one sentence that can be quoted without the rest of the page."""
    claim, job = document.claim, document.job
    noun, was, _ = _UNITS[claim.unit]
    earlier = document.mechanism.steps_before
    steps = f"{claim.steps} steps and {earlier} earlier ones" if earlier else f"{claim.steps} steps"
    alternative = "or nothing was in their place" if claim.adjacency == "ZeroOut" else "or not"
    return (
        f"The adapter of the training job {job.name} at step {job.step} was trained with differential privacy for each "
        f"{noun} (ε = {claim.epsilon}, δ = {claim.delta}, {steps}): whether {was} in the training data {alternative} "
        f"changes the probability of anything that the job published by a factor of at most {_factor(claim)}, apart "
        f"from a probability of at most {claim.delta}, under the assumptions that its privacy statement lists."
    )


def unit_words(document: StatementDocument) -> tuple[str, str]:
    """The unit as a noun, one and several."""
    noun, _, _ = _UNITS[document.claim.unit]
    return noun, f"{noun}s"


def meaning_sentences(document: StatementDocument) -> list[str]:
    """What the claim means for one unit, for readers who do not know ε."""
    claim = document.claim
    _, _, any_one = _UNITS[claim.unit]
    limits = attack_limits(claim.epsilon, claim.delta)
    return [
        f"An adversary who knows all other data, and for whom it was as likely as not that {any_one} was in the data, "
        f"is right about it in at most {percent(limits.accuracy)} % of all cases. 50 % is guessing.",
        f"An attack that raises a false alarm for {percent(FALSE_ALARMS)} % of those who were not in the data finds at "
        f"most {percent(limits.detected)} % of those who were.",
        "These are limits for every possible attack, computed from ε and δ. They are not measurements.",
        _strength(claim),
    ]


def _strength(claim: ClaimPart) -> str:
    """Where ε stands in the tiers of Ponomareva et al. 2023, "How to DP-fy ML"."""
    epsilon = Decimal(claim.epsilon)
    if epsilon <= 1:
        tier = "a strong formal guarantee (tier 1: ε ≤ 1)"
    elif epsilon <= 10:
        tier = "a reasonable formal guarantee (tier 2: ε ≤ 10)"
    else:
        tier = "a weak formal guarantee, or none (tier 3: ε > 10)"
    return f"In the tiers of Ponomareva et al. 2023, “How to DP-fy ML”, ε = {claim.epsilon} is {tier}."


def _is_moderate(epsilon: str) -> bool:
    """Whether e^ε can be written out."""
    return Decimal(epsilon) <= _LARGEST_WRITTEN


def _factor(claim: ClaimPart) -> str:
    if not _is_moderate(claim.epsilon):
        return f"e^{claim.epsilon}"
    return f"{factor_text(claim.epsilon)} (e^{claim.epsilon})"
