"""No adversary beats the claimed ε: thousands of one-step runs, with and without one record, of the whole trainer.

An adversary who knows everything but one record reads a revealed sum, and guesses whether the record was in the data.
The rates of right and wrong guesses give a lower bound on ε (Clopper-Pearson). It must lie below the claim, or the
claim is false. It must lie above a third of the claim, or the test would not notice a claim that is false.

Each job runs its real workers: sampling, gradients, clipping, noise, charges, masks, verification and decoding. It
trains the head alone, whose steps take half as long as those with LoRA. The learning rate is too small to change a
weight, so each step of a job is a one-step run on the same model.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.support.trainer.fault_injection import HalfNoise, Instrument, NoNoise
from tests.support.trainer.rank_harness import Job, join
from tests.support.trainer.recordings import KeepTotals

STEPS = 5000
SIGMA, DELTA = 0.6, 0.1
"""With them the bound is expected near 1.4, the claim is 3.17, and the bound of half the noise would be above 3.4."""
THRESHOLDS = (0.6, 0.9, 1.2, 1.5)
"""The adversary's thresholds, in clip norms, fixed beforehand."""
FAILURE = 1e-4
"""Probability that one of the confidence intervals does not hold."""
OTHERS = [{"text": "w1 w2 w3", "label": 0}, {"text": "w30 w31 w32 w33", "label": 1}]
RECORD = {"text": "w10 w20 w15 w25 w35", "label": 5}


def revealed(directory: Path, records: list[dict[str, Any]], steps: int, *instruments: Instrument) -> tuple[Job, Any]:
    """The sums that a job of two workers reveals, in clip norms: float64 [steps, d]."""
    job = Job.make(
        directory,
        "spec.model.numLabels=6",
        "spec.dataset.unit.atLeast=8",
        "spec.training.expectedBatchSize=6",
        f"spec.training.steps={steps}",
        "spec.training.microBatchSize=4",
        "spec.lora={layers: []}",
        'spec.training.learningRate="1e-30"',
        'spec.training.weightDecay="0"',
        f'spec.privacy.noiseMultiplier="{SIGMA}"',
        f'spec.privacy.targetDelta="{DELTA}"',
        'spec.privacy.targetEpsilon="1e9"',
        'spec.privacy.maxGradNorm="0.01"',
        f"spec.checkpoint.everySteps={steps}",
        rows=records,
    )
    assert join(job.start(KeepTotals(), *instruments), timeout=600) == [0, 0], job.errors()
    files = sorted((directory / "totals").glob("*.npy"))
    assert len(files) == steps
    sums = np.stack([np.load(file).view(np.int32) for file in files])
    return job, sums / job.plan.mechanism.grid


def direction_of_the_record(directory: Path) -> np.ndarray:
    """The unit vector along which only the record moves a sum, found in runs without noise."""
    _, without = revealed(directory / "without", OTHERS, 30, NoNoise())
    _, with_record = revealed(directory / "with", [*OTHERS, RECORD], 30, NoNoise())
    others = np.linalg.svd(without, full_matrices=False)[2][: len(OTHERS)]
    rest = with_record - with_record @ others.T @ others
    longest = rest[np.linalg.norm(rest, axis=1).argmax()]
    return longest / np.linalg.norm(longest)


def lower_bound(absent: np.ndarray, present: np.ndarray) -> float:
    """The largest ε that an adversary's guesses disprove at DELTA, with confidence 1 - FAILURE; 0 if none.

    The adversary guesses that the record was present if the score is above a threshold.

    Args:
        absent, present: the score of each run without and with the record, in clip norms: [runs].
    """
    failure = FAILURE / (2 * len(THRESHOLDS))
    bounds = [0.0]
    for threshold in THRESHOLDS:
        wrong, right = (absent > threshold).sum(), (present > threshold).sum()
        wrong_at_most = stats.beta.ppf(1 - failure, wrong + 1, len(absent) - wrong)
        right_at_least = stats.beta.ppf(failure, right, len(present) - right + 1) if right else 0.0
        if right_at_least > DELTA:
            bounds.append(math.log((right_at_least - DELTA) / wrong_at_most))
    return max(bounds)


def test_lower_bound_of_a_gaussian_is_near_its_exact_epsilon_and_below_it() -> None:
    absent, present = np.random.default_rng(0).normal(scale=SIGMA, size=(2, 100_000))
    epsilon = np.linspace(0, 10, 10_001)
    mean, spread = 1 / (2 * SIGMA), epsilon * SIGMA
    deltas = stats.norm.cdf(mean - spread) - np.exp(epsilon) * stats.norm.cdf(-mean - spread)
    exact = epsilon[np.argmax(deltas <= DELTA)]
    assert exact / 2 < lower_bound(absent, present + 1) < exact
    assert lower_bound(absent, present) == 0.0


def claim_and_lower_bound(directory: Path, runs: int, *instruments: Instrument) -> tuple[float, float]:
    """The claimed ε of one step, and the bound that `runs` runs with and as many without the record measure."""
    direction = direction_of_the_record(directory)
    job, absent = revealed(directory / "absent", OTHERS, runs, *instruments)
    _, present = revealed(directory / "present", [*OTHERS, RECORD], runs, *instruments)
    claim, bound = job.plan.epsilon(1), lower_bound(absent @ direction, present @ direction)
    print(f"ε of one step: {claim:.2f} claimed, at least {bound:.2f} by {runs} runs with and without the record")
    return claim, bound


@pytest.mark.slow
def test_measured_lower_bound_lies_below_the_claim_and_above_a_third_of_it(tmp_path: Path) -> None:
    claim, bound = claim_and_lower_bound(tmp_path, STEPS)
    assert claim / 3 < bound < claim


@pytest.mark.slow
def test_half_of_the_noise_would_be_noticed(tmp_path: Path) -> None:
    """The measurement is precise enough to refute a claim whose noise is halved on every rank."""
    claim, bound = claim_and_lower_bound(tmp_path, 2500, HalfNoise())
    assert bound > claim
