"""What other numbers of steps would cost a job, for the same number of example gradients.

A job's time is about steps × expected batch. For the same time, fewer and larger steps need a larger σ, but the noise
is divided by the batch. The movement of the weights grows with the number of steps, and the noise in it with the square
root of this number. So what counts is σ / (batch × √steps), the noise of a fixed movement (`Choice.noise`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensafe_api.manifest.validation import ManifestError
from tensafe_api.resolve import Plan, resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob

FACTORS = (0.25, 0.5, 1, 2, 4, 8)
"""The batches of the choices, as multiples of the job's own."""
MIN_STEPS = 10
"""Pairs with fewer steps are left out."""
STEPS_TO_LEARN = 30
"""`proposed` returns no pair with fewer steps, in which the weights could move too little."""


@dataclass(frozen=True)
class Choice:
    """One pair of steps and batch.

    Attributes:
        plan: what the job would resolve to.
        own: whether this is the job's own pair.
    """

    plan: Plan
    own: bool

    @property
    def batch(self) -> int:
        """Units in a step, on average."""
        return self.plan.mechanism.expected_batch_size

    @property
    def noise_of_a_step(self) -> float:
        """Standard deviation of the noise in the mean gradient of a step, in clip norms."""
        return float(self.plan.mechanism.noise_multiplier) / self.batch

    @property
    def noise(self) -> float:
        """Standard deviation of the noise beside a fixed movement, in clip norms."""
        return self.noise_of_a_step / math.sqrt(self.plan.steps)


def choices(job: TenSafeTrainingJob) -> Iterator[Choice]:
    """The pairs of steps and batch that take about as long as those of `job`, from the smallest batch on.

    σ is calibrated for each, which takes seconds, also where the job has a `noiseMultiplier`. Pairs that are not
    possible are left out: a batch above `unit.atLeast`, fewer than MIN_STEPS steps, an overflow of the integer grid.

    Raises:
        ManifestError: the job itself has no valid plan.
    """
    _, own = resolve_job(job)
    batch, gradients = own.mechanism.expected_batch_size, own.steps * own.mechanism.expected_batch_size
    for factor in FACTORS:
        if factor == 1:
            yield Choice(resolve_job(_with(job, own.steps, batch))[1], own=True)
            continue
        other = round(batch * factor)
        steps = round(gradients / max(other, 1))
        if not 1 <= other <= job.spec.dataset.unit.at_least or steps < MIN_STEPS:
            continue
        try:
            yield Choice(resolve_job(_with(job, steps, other))[1], own=False)
        except ManifestError:
            continue


def proposed(found: Sequence[Choice]) -> Choice | None:
    """The choice with the least noise, of those with STEPS_TO_LEARN steps; None if that is the job's own pair."""
    best = min(found, key=lambda choice: (not choice.own and choice.plan.steps < STEPS_TO_LEARN, choice.noise))
    return None if best.own else best


def _with(job: TenSafeTrainingJob, steps: int, batch: int) -> TenSafeTrainingJob:
    spec = job.spec
    training = spec.training.model_copy(update={"steps": steps, "epochs": None, "expected_batch_size": batch})
    privacy = spec.privacy.model_copy(update={"noise_multiplier": None})
    return job.model_copy(update={"spec": spec.model_copy(update={"training": training, "privacy": privacy})})
