"""A noise sampler is used only if the job's δ pays for its distance from the discrete Gaussian."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpmath
import pytest

from tensafe_api.accounting.composition import SAMPLER_SHARE_OF_DELTA
from tensafe_api.resolve import Plan
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.setup import _check_noise_sampler
from tests.support.trainer.rank_harness import Job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    one_step = ("spec.cluster.workers=1", "spec.training.steps=1")
    return Job.make(tmp_path_factory.mktemp("noise") / "run", *one_step)


def largest_distance(plan: Plan, dimension: int) -> float:
    """The total variation of one draw at which all draws together cost exactly the sampler's share of δ."""
    with mpmath.workdps(40):
        draws = dimension * plan.max_steps * plan.mechanism.workers
        epsilon = min(plan.target_epsilon, plan.epsilon(plan.max_steps))
        share = mpmath.mpf(plan.delta) * mpmath.mpf(SAMPLER_SHARE_OF_DELTA)
        return float(share / (draws * (1 + mpmath.exp(epsilon))))


def sampler(distance: float) -> Any:
    return SimpleNamespace(total_variation=distance)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("dimension", [1, 578, 10**8])
def test_share_of_delta_pays_for_the_draws_of_all_workers_and_steps(job: Job, workers: int, dimension: int) -> None:
    plan = replace(job.plan, mechanism=job.plan.mechanism.model_copy(update={"workers": workers}))
    largest = largest_distance(plan, dimension)
    assert _check_noise_sampler(plan, sampler(largest * (1 - 1e-9)), dimension) == ()
    with pytest.raises(AttemptFailed, match=r"spec\.privacy\.targetDelta: .* is too small for \d+ draws of noise"):
        _check_noise_sampler(plan, sampler(largest * (1 + 1e-9)), dimension)


def test_share_of_delta_pays_for_the_draws_of_earlier_trainings(job: Job) -> None:
    """Those of all earlier trainings together may have what the draws of this job leave."""
    plan, dimension = job.plan, 578
    draws = dimension * plan.max_steps * plan.mechanism.workers
    largest = largest_distance(plan, dimension)
    half, rest = sampler(largest / 2), draws * largest / 2
    assert _check_noise_sampler(plan, half, dimension, rest * (1 - 1e-9)) == ()
    with pytest.raises(AttemptFailed, match=r"spec\.privacy\.targetDelta: .* is too small"):
        _check_noise_sampler(plan, half, dimension, rest * (1 + 1e-9))


def test_statement_has_a_remark_where_no_sampler_could_be_precise_enough(tmp_path: Path) -> None:
    plan = Job.make(tmp_path / "run", "spec.privacy.noiseMultiplier=0.1", "spec.privacy.targetEpsilon=1000000").plan
    assert plan.epsilon(plan.max_steps) > 100
    (remark,) = _check_noise_sampler(plan, DiscreteGaussian(plan.mechanism.share_sigma), 578)
    assert remark.endswith(" to δ: such an ε hides nothing.")


def test_sampler_has_to_be_precise_enough_up_to_an_epsilon_of_30(job: Job) -> None:
    noisy = job.plan.mechanism.model_copy(update={"noise_multiplier": "0.1"})
    for target, refused in ((30.0, True), (30.001, False)):
        plan = replace(job.plan, mechanism=noisy, target_epsilon=target)
        assert plan.epsilon(plan.max_steps) > 31
        if refused:
            with pytest.raises(AttemptFailed):
                _check_noise_sampler(plan, sampler(1e-9), 578)
        else:
            assert len(_check_noise_sampler(plan, sampler(1e-9), 578)) == 1


def test_run_whose_sampler_is_not_precise_enough_spends_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = DiscreteGaussian.__init__

    def imprecise(noise: DiscreteGaussian, sigma: float) -> None:
        prepare(noise, sigma)
        noise.total_variation = 1e-15

    monkeypatch.setattr(DiscreteGaussian, "__init__", imprecise)
    job.train_alone()
    assert job.ended().reason == "InvalidManifest"
    assert "draws of noise with a distance of 1.0e-15 each" in job.ended().message
    assert job.ledger().steps_charged == 0
