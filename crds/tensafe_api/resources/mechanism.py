"""The mechanism of one DP-SGD step, and the privacy events that accounting composes.

The privacy loss of a job is a list of `PrivacyEvent`s: a number of charged steps of one `Mechanism`. The ledger stores
the charges, the statement repeats them, and only `accounting` computes ε from them. All figures are decimal strings and
are used as written: the sampler and the noise use the same `sampleRate` and `noiseMultiplier` strings as the
accountant. So no rounding comes between the privacy claim and the training.

The trainer adds *discrete* Gaussian shares on an integer grid. dp-accounting has no event for them, so the accounting
uses the continuous Gaussian of a σ that is smaller by a millionth (`composition.SIGMA_SHARE`). Decision 0038 proves
that every ε then holds, for noise of at least 2,830 grid steps, which `resolve` requires. The computed error of the
samplers is paid from δ (`composition.SAMPLER_SHARE_OF_DELTA`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal, localcontext
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tensafe_api.resources.base import Block
from tensafe_api.resources.numeric import (
    NoiseMultiplier,
    Positive,
    PositiveDecimal,
    Rate,
    SampleRate,
    Workers,
)

Adjacency = Literal["AddOrRemoveOne", "ZeroOut"]
"""Which data sets are neighbours, between which ε bounds the difference.

- AddOrRemoveOne: one of them has one unit more. The number of units is private.
- ZeroOut: one of them has a unit where the other has nothing in its place. Both have the same number n of units, and
  n is public. dp-accounting has it as `REPLACE_SPECIAL`; it is definition 1.1 of Kairouz et al. 2021, "Practical and
  Private (Deep) Learning without Sampling or Shuffling". A job whose `unit.atLeast` is the true number of units
  publishes n, so it cannot claim more than this.

**The same ε holds for both.** Let D and D′ be zero-out neighbours: D has the unit x, D′ has nothing in its place.

1. All public figures of a run (q, σ, B, the steps, δ) are functions of the manifest and of n. n is the same for D and
   D′, so both run the same mechanism with the same figures.
2. A step samples each unit independently with probability q, and reveals Σ f(u) over the sampled units plus noise,
   where ‖f(u)‖ ≤ C. "Nothing" adds 0, whether it is sampled or not. So a step on D′ has the distribution of the same
   step on D without x: the draws of all other units are the same, and so are their sums.
3. So, for fixed figures, the pair of distributions is that of D and of D without x, in both directions. These two are
   add-or-remove neighbours, for which the Poisson-sampled Gaussian is accounted. Steps compose in the same way.

Under add-or-remove adjacency, point 1 fails where n is counted: D without x would have other figures and publish
another n, which an adversary would distinguish with certainty.
"""

MAX_EARLIER_TRAININGS = 64
_MAX_DIGITS = 400
"""Enough for every float: the largest one has 309 digits before the decimal point."""


class FrozenModel(BaseModel):
    """A value that is stored and compared: immutable, camelCase in JSON, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class EarlierSteps(Block):
    """Steps of an earlier private training."""

    sample_rate: SampleRate = Field(description="Probability with which each unit joined a step.")
    noise_multiplier: NoiseMultiplier = Field(description="Standard deviation of the noise divided by the clip norm.")
    steps: Positive = Field(description="Number of steps that the claim of the earlier training covers.")


class Mechanism(Block):
    """The mechanism of one DP-SGD step, frozen when the job is admitted. A resume with another one is refused."""

    sample_rate: Rate = Field(
        description="q: probability with which each unit joins a step, independently of the others."
    )
    noise_multiplier: PositiveDecimal = Field(
        description="Sigma: standard deviation of the noise divided by the clip norm."
    )
    clip: PositiveDecimal = Field(description="C: bound of the L2 norm of one unit's gradient.")
    unit: Literal["Example", "User"] = Field(
        description="What epsilon protects: one example, or all examples of one user."
    )
    adjacency: Adjacency = Field(
        "AddOrRemoveOne",
        description="Which data sets are neighbours. AddOrRemoveOne: one has one unit more. ZeroOut: one has nothing "
        "in place of one unit of the other, and the number of units is public.",
    )
    workers: Workers = Field(description="N: number of workers, each of which adds a share of the noise.")
    grid_bits: Annotated[int, Field(strict=True, ge=1, le=30)] = Field(
        description="k: one clip norm is 2^k steps of the integer grid."
    )
    expected_batch_size: Positive = Field(description="B: public denominator of the mean of a step, in units.")
    earlier_steps: Annotated[tuple[EarlierSteps, ...], Field(max_length=MAX_EARLIER_TRAININGS)] = Field(
        (),
        exclude_if=lambda earlier: not earlier,
        description="Steps of the earlier trainings of the adapter that the job starts from. Every epsilon of the job "
        "counts them. Default: none.",
    )

    @property
    def earlier_events(self) -> tuple[PrivacyEvent, ...]:
        """The privacy events of the earlier trainings."""
        return earlier_events(self.earlier_steps)

    @property
    def steps_before(self) -> int:
        """The number of steps of the earlier trainings, which every ε counts."""
        return sum(earlier.steps for earlier in self.earlier_steps)

    @property
    def grid(self) -> int:
        """S = 2^k: grid steps in one clip norm."""
        return 1 << self.grid_bits

    @property
    def share_sigma(self) -> float:
        """σ_w = σ·S/√N: the standard deviation of one worker's share, in grid steps.

        All N shares together have the standard deviation σ·S, and ε counts all of them. So ε is for readers of the
        released outputs. Assumed: every worker adds its share, and neither subtracts it nor reveals it to a reader.
        """
        return float(self.noise_multiplier) * self.grid / math.sqrt(self.workers)


class PrivacyEvent(FrozenModel):
    """`steps` charged steps of Poisson sampling at `sampleRate` followed by Gaussian noise of `noiseMultiplier`."""

    kind: Literal["PoissonSampledGaussian"] = "PoissonSampledGaussian"
    sample_rate: str
    noise_multiplier: str
    steps: int = Field(ge=0)


def charged_events(mechanism: Mechanism, steps: int) -> tuple[PrivacyEvent, ...]:
    """The privacy events of `steps` charged steps, after those of earlier trainings."""
    own = PrivacyEvent(sample_rate=mechanism.sample_rate, noise_multiplier=mechanism.noise_multiplier, steps=steps)
    return (*mechanism.earlier_events, own)


def earlier_events(earlier: Iterable[EarlierSteps]) -> tuple[PrivacyEvent, ...]:
    """The privacy events of earlier trainings."""
    return tuple(PrivacyEvent(**each.model_dump(by_alias=False)) for each in earlier)


def earlier_steps_yaml(steps: Iterable[EarlierSteps]) -> str:
    """`spec.lora.initFrom.earlierSteps`, as it is written in a manifest."""
    entries = (
        f'{{sampleRate: "{each.sample_rate}", noiseMultiplier: "{each.noise_multiplier}", steps: {each.steps}}}'
        for each in steps
    )
    return f"[{', '.join(entries)}]"


def round_up(value: Decimal | float, digits: int) -> str:
    """`value` with at most `digits` decimals, never below it, in plain notation without trailing zeros.

    It is used for σ (more noise is safe), q (more sampling is charged more) and ε (a claim never shows less than was
    spent).
    """
    with localcontext(prec=_MAX_DIGITS):
        rounded = Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING).normalize()
    return f"{rounded:f}"
