"""What a job does to its records, in the words of accounting.

A job's whole privacy loss is a list of `Event`s: so many charged steps of one mechanism. The ledger stores the charges,
the statement repeats them, and `accounting` turns them into ε; nothing else does. All figures are decimal strings and
are used as written: the sampler draws with the very `sampleRate`, the noise with the very `noiseMultiplier`, that the
accountant is given, so that no rounding can come between what is claimed and what is run.

The mechanism that runs adds *discrete* Gaussian shares on an integer grid, and dp-accounting has no event for it, so
the continuous Gaussian of the same σ stands for it. With σ_w ≥ 64 grid steps (which `resolve` demands) the moments of
the two differ by a relative e^{-2π²σ_w²} < 10^-35000 (Canonne, Kamath, Steinke 2020, and Kairouz, Liu, Steinke 2021,
theorem 1, for sums of shares): far below what a float can show. The samplers' own computed error is paid from δ
(`accounting.SAMPLER_SHARE_OF_DELTA`).
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal, localcontext
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tensafe_api.resources.base import Block
from tensafe_api.resources.values import Positive, PositiveDecimal, Rate

_MAX_DIGITS = 400
"""Enough for every float: the largest has 309 digits before the point."""


class FrozenModel(BaseModel):
    """A value that is stored and compared: immutable, camelCase in JSON, no field unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Mechanism(Block):
    """One step of DP-SGD, as frozen in the ledger when the job is admitted. A resume under another one is refused."""

    sample_rate: Rate = Field(description="q: the probability with which each unit joins a step, independently.")
    noise_multiplier: PositiveDecimal = Field(
        description="Sigma: the noise's standard deviation over the clip norm, as seen by the colluders."
    )
    clip: PositiveDecimal = Field(description="C: the bound of one unit's L2 norm.")
    unit: Literal["Example", "User"] = Field(description="What the guarantee protects.")
    adjacency: Literal["AddOrRemoveOne"] = Field(
        "AddOrRemoveOne", description="Which data sets are neighbours: those that differ by one unit."
    )
    workers: Annotated[int, Field(strict=True, ge=1, le=16)] = Field(
        description="N: how many workers add a share of the noise."
    )
    colluders: Annotated[int, Field(strict=True, ge=0, le=15)] = Field(
        description="t: how many workers may pool their shares and still face sigma."
    )
    grid_bits: Annotated[int, Field(strict=True, ge=1, le=30)] = Field(
        description="k: one clip norm is 2^k grid steps."
    )
    expected_batch_size: Positive = Field(description="B: the public denominator of a step's mean, in units.")

    @property
    def grid(self) -> int:
        """S = 2^k: grid steps in one clip norm."""
        return 1 << self.grid_bits

    @property
    def outsider_noise_multiplier(self) -> float:
        """σ√(N/(N−t)): what stands against somebody who holds no worker's share."""
        return float(self.noise_multiplier) * math.sqrt(self.workers / (self.workers - self.colluders))

    @property
    def share_sigma(self) -> float:
        """σ_w = σ·S/√(N−t): the standard deviation of one worker's share, in grid steps."""
        return float(self.noise_multiplier) * self.grid / math.sqrt(self.workers - self.colluders)


class PrivacyEvent(FrozenModel):
    """`steps` charged steps of Poisson sampling at `sampleRate` followed by Gaussian noise of `noiseMultiplier`."""

    kind: Literal["PoissonSampledGaussian"] = "PoissonSampledGaussian"
    sample_rate: str
    noise_multiplier: str
    steps: int = Field(ge=0)


def charged_events(mechanism: Mechanism, steps: int) -> tuple[PrivacyEvent, ...]:
    """The events of `steps` charged steps; σ is what stands when the colluders have pooled their shares."""
    return (PrivacyEvent(sample_rate=mechanism.sample_rate, noise_multiplier=mechanism.noise_multiplier, steps=steps),)


def round_up(value: Decimal | float, digits: int) -> str:
    """`value` with at most `digits` decimals, never below it, in plain notation without trailing zeros.

    For σ (more noise is safe), q (more sampling is charged more) and ε (a claim never shows less than was spent).
    """
    with localcontext(prec=_MAX_DIGITS):
        rounded = Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING).normalize()
    return f"{rounded:f}"
