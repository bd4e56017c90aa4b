"""Pairs of steps and batch that take as long as a job's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tensafe_api.manifest.validation import ManifestError
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.step_choices import Choice, choices, proposed

pytestmark = pytest.mark.slow

Job = Callable[[Mapping[str, Any]], TenSafeTrainingJob]
OWN = {"spec.training": {"steps": 40, "expectedBatchSize": 256}, "spec.privacy.accountant": "RDP"}


@pytest.fixture
def found(job: Job) -> list[Choice]:
    return list(choices(job(OWN)))


def test_choices_take_as_long_as_the_job_and_keep_its_epsilon(found: list[Choice]) -> None:
    assert [(choice.plan.steps, choice.batch) for choice in found] == [
        (160, 64), (80, 128), (40, 256), (20, 512), (10, 1024)
    ]  # fmt: skip
    assert [choice.own for choice in found] == [False, False, True, False, False]
    for choice in found:
        assert choice.plan.epsilon(choice.plan.steps + choice.plan.reserve_steps) <= choice.plan.target_epsilon


def test_noise_of_a_fixed_movement_falls_with_the_batch(found: list[Choice]) -> None:
    assert [choice.noise for choice in found] == sorted((choice.noise for choice in found), reverse=True)
    own = found[2]
    sigma = float(own.plan.mechanism.noise_multiplier)
    assert own.noise_of_a_step == pytest.approx(sigma / 256)
    assert own.noise == pytest.approx(sigma / (256 * math.sqrt(40)))


def test_batches_above_the_number_of_units_and_too_few_steps_are_left_out(job: Job) -> None:
    every_unit = {"spec.training": {"steps": 90, "expectedBatchSize": 5000}, "spec.privacy.accountant": "RDP"}
    assert [choice.batch for choice in choices(job(every_unit))] == [1250, 2500, 5000]
    single = {"spec.training": {"steps": 11, "expectedBatchSize": 1}, "spec.privacy.accountant": "RDP"}
    assert [(choice.batch, choice.plan.steps) for choice in choices(job(single))] == [(1, 11)]
    few = {"spec.training": {"steps": 2, "expectedBatchSize": 1000}, "spec.privacy.accountant": "RDP"}
    assert [(choice.batch, choice.plan.steps) for choice in choices(job(few))] == [(1000, 2)]


def test_noise_is_calibrated_also_where_the_job_has_a_noise_multiplier(job: Job) -> None:
    fixed = job({**OWN, "spec.privacy.noiseMultiplier": "3"})
    own = next(choice for choice in choices(fixed) if choice.own)
    assert own.plan.mechanism.noise_multiplier == "0.652004"


def test_pair_that_overflows_the_grid_is_left_out(job: Job) -> None:
    large = {"steps": 100, "expectedBatchSize": 50_000}
    changes = {"spec.dataset.unit.atLeast": 10**7, "spec.training": large, "spec.privacy.accountant": "RDP"}
    assert [choice.batch for choice in choices(job(changes))] == [12_500, 25_000, 50_000, 100_000]


def test_job_without_a_valid_plan_is_refused(job: Job) -> None:
    with pytest.raises(ManifestError, match="expectedBatchSize"):
        next(choices(job({"spec.training": {"steps": 40, "expectedBatchSize": 5001}})))


def test_proposal_has_the_least_noise_of_those_with_enough_steps(job: Job, found: list[Choice]) -> None:
    assert proposed(found) is None  # 40 steps are the job's own, and 20 are too few
    longer = list(choices(job({**OWN, "spec.training": {"steps": 60, "expectedBatchSize": 256}})))
    best = proposed(longer)
    assert best is not None and best.plan.steps == 30
    assert proposed(longer[:3]) is None
