"""The noise of a plan covers every step that may be charged, and is refused where ε would be too small."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensafe_api.accounting import calibration, composition
from tensafe_api.accounting.composition import MIN_NOISE, epsilon, job_delta
from tensafe_api.job_status import COMPUTED
from tensafe_api.manifest.validation import ManifestError, parse_job
from tensafe_api.resolve import (
    MAX_GRID_BITS,
    Plan,
    _grid_bits,
    resolve_job,
    round_down_delta,
)
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.mechanism import PrivacyEvent

Job = Callable[..., TenSafeTrainingJob]


def problem(error: pytest.ExceptionInfo[ManifestError]) -> tuple[str, str]:
    (only,) = error.value.problems
    return only.path, only.message


def test_pld_is_refused_where_its_rounding_is_not_negligible(job: Job) -> None:
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.privacy.accountant": "PLD", "spec.privacy.targetDelta": "9e-9"}))
    path, message = problem(error)
    assert path == "spec.privacy.accountant"
    assert message == (
        "PLD needs a delta of at least 1e-08, since its rounding errors matter below: remove it to use RDP"
    )


def test_charged_steps_stay_within_the_error_bound_of_the_sampler(job: Job) -> None:
    _, plan = resolve_job(job({"spec.privacy.targetEpsilon": "1e12"}))
    assert plan.affordable_steps(0, 10**9) == plan.max_steps == 10 * (plan.steps + plan.reserve_steps)


@given(st.integers(1, 2**40))
def test_default_delta_is_at_most_a_tenth_of_one_over_the_units(at_least: int) -> None:
    text = round_down_delta(Decimal(1) / (10 * at_least))
    exact = Fraction(1, 10 * at_least)
    assert exact * Fraction(99, 100) < Fraction(text) <= exact
    assert "e" not in text.lower()


@pytest.mark.parametrize(("batch", "bits"), [(512, 21), (16_384, 16), (250, 22), (1, 22), (100_000, 14)])
def test_grid_is_the_finest_that_fits_an_int32(batch: int, bits: int) -> None:
    assert _grid_bits(batch, 1.0) == bits


@given(st.integers(1, 100_000), st.floats(0.01, 50.0))
def test_worst_case_fits_an_int32_and_would_not_on_a_finer_grid(batch: int, sigma: float) -> None:
    widest = batch + 8 * math.sqrt(batch) + 8 * sigma
    try:
        bits = _grid_bits(batch, sigma)
    except ManifestError:
        assert widest * 2**14 > 2**31 - 1
        return
    assert widest * 2**bits <= 2**31 - 1
    assert bits == MAX_GRID_BITS or widest * 2 ** (bits + 1) > 2**31 - 1


def test_a_batch_whose_worst_case_overflows_the_grid_is_refused(job: Job) -> None:
    changes = {
        "spec.dataset.unit.atLeast": 10**7,
        "spec.training": {"steps": 10, "expectedBatchSize": 200_000},
    }
    with pytest.raises(ManifestError) as error:
        resolve_job(job(changes))
    path, message = problem(error)
    assert path == "spec.training.expectedBatchSize"
    assert "overflows the integer grid" in message and "lower it" in message
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.privacy.noiseMultiplier": "20000"}))
    assert "or lower spec.privacy.noiseMultiplier" in problem(error)[1]


def test_noise_of_too_few_grid_steps_is_refused(job: Job) -> None:
    least = 2830 / 2**22  # 2^22 steps in a clip norm
    enough, too_little = f"{least * 1.01:.9f}", f"{least * 0.99:.9f}"
    resolve_job(job({"spec.privacy.noiseMultiplier": enough, "spec.privacy.targetEpsilon": "1e12"}))
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.privacy.noiseMultiplier": too_little}))
    path, message = problem(error)
    assert path == "spec.privacy.noiseMultiplier"
    assert message.endswith(
        "the noise is below 2,830 steps of the integer grid: raise it, or lower spec.training.expectedBatchSize"
    )


def test_noise_of_many_workers_needs_the_same_total(job: Job) -> None:
    """The share of each of 256 workers has a sixteenth of the noise. The grid of an int32 leaves it enough steps."""
    changes = {"spec.cluster.workers": 256, "spec.privacy.noiseMultiplier": "0.5"}
    few, many = (resolve_job(job(more))[1].mechanism for more in ({"spec.privacy.noiseMultiplier": "0.5"}, changes))
    assert (few.workers, many.workers, many.grid_bits) == (2, 256, few.grid_bits)
    assert many.share_sigma * 16 == pytest.approx(few.share_sigma * math.sqrt(2))
    assert many.share_sigma * 16 > MIN_NOISE


def test_noise_with_which_no_step_fits_the_budget_is_refused(job: Job) -> None:
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.privacy.noiseMultiplier": "0.2", "spec.privacy.targetEpsilon": "1"}))
    path, message = problem(error)
    assert path == "spec.privacy.noiseMultiplier"
    assert "the first step alone exceeds spec.privacy.targetEpsilon" in message


def test_a_plan_beyond_the_budget_claims_no_more_than_the_budget_allows(job: Job) -> None:
    _, plan = resolve_job(job({"spec.privacy.noiseMultiplier": "0.9", "spec.privacy.targetEpsilon": "3"}))
    assert plan.epsilon(plan.steps) > 3
    assert 0 < plan.claimed_steps(0) < plan.steps
    assert plan.epsilon_claimed(0) <= 3
    assert plan.claimed_steps(plan.steps) == plan.steps, "the claim covers all charged steps"


def test_unreachable_target_is_refused_at_its_field(job: Job) -> None:
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.privacy.targetEpsilon": "1e-9"}, calibrated=True))
    path, message = problem(error)
    assert path == "spec.privacy.targetEpsilon"
    assert "raise it, or lower spec.training.steps" in message


def test_each_gpu_adds_a_share_of_the_noise(job: Job) -> None:
    noise = {"spec.privacy.noiseMultiplier": "0.5"}
    gpus = {**noise, "spec.cluster.workers": 3, "spec.cluster.worker": {"gpus": 4}}
    alone, together = (resolve_job(job(changes))[1].mechanism for changes in (noise, gpus))
    assert (alone.workers, together.workers) == (2, 12)
    assert together.share_sigma == pytest.approx(alone.share_sigma * math.sqrt(2 / 12))


@pytest.mark.slow
@settings(max_examples=10)
@given(st.sampled_from(["0.5", "1", "3", "8", "20"]), st.integers(1, 3000), st.integers(30, 100_000))
def test_planned_and_reserved_steps_stay_within_the_target(target: str, steps: int, at_least: int) -> None:
    manifest = {
        "apiVersion": "tensafe.io/v1alpha1",
        "kind": "TenSafeTrainingJob",
        "metadata": {"name": "a"},
        "spec": {
            "model": {"name": "m"},
            "dataset": {"uri": "d", "columns": {"text": "t"}, "unit": {"kind": "Example", "atLeast": at_least}},
            "training": {"steps": steps},
            "privacy": {"targetEpsilon": target},
            "checkpoint": {"uri": "c"},
            "cluster": {"workers": 1},
        },
    }
    plan = resolve_job(parse_job(manifest))[1]
    whole = plan.steps + plan.reserve_steps
    assert plan.epsilon(whole) <= float(target)
    assert plan.affordable_steps(0, whole) == whole
    assert plan.epsilon_claimed(0) == plan.epsilon(plan.steps) == plan.epsilon_claimed(plan.steps)
    assert plan.epsilon_claimed(whole) == plan.epsilon(whole)
    beyond = plan.affordable_steps(whole, 10**6)
    assert plan.epsilon(whole + beyond) <= float(target)
    assert whole + beyond == plan.max_steps or float(target) < plan.epsilon(whole + beyond + 1)
    assert plan.affordable_steps(whole + beyond, 10) == 0
    assert plan.affordable_steps(whole + beyond + 5, 10) == 0


OUTSIDE_PLD = [
    {"spec.training": {"steps": 20_000}, "spec.privacy.reserveSteps": 1, "spec.privacy.noiseMultiplier": "200"},
    {"spec.privacy.noiseMultiplier": "0.29", "spec.privacy.targetEpsilon": "20"},
    {"spec.privacy.targetEpsilon": "20.1", "spec.privacy.noiseMultiplier": "200"},
]


@pytest.mark.parametrize(
    ("changes", "limit"),
    zip(
        OUTSIDE_PLD,
        (
            "PLD is for up to 20,000 steps, and this job may be charged 20,001",
            "PLD needs a noise multiplier of at least 0.3, and this job's would be 0.29",
            "PLD is for a target of up to 20, and this one is 20.1",
        ),
        strict=True,
    ),
)
def test_pld_is_refused_outside_its_limits(changes: Mapping[str, Any], limit: str, job: Job) -> None:
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.privacy.accountant": "PLD", **changes}))
    path, message = problem(error)
    assert path == "spec.privacy.accountant"
    assert message == f"{limit}: remove it to use RDP"


@pytest.mark.parametrize("changes", OUTSIDE_PLD)
def test_rdp_is_the_default_outside_the_limits_of_pld(changes: Mapping[str, Any], job: Job) -> None:
    completed, plan = resolve_job(job(changes))
    assert (plan.accountant, completed.spec.privacy.accountant) == ("RDP", "RDP")


@pytest.mark.parametrize("accountant", ["RDP", "PLD"])
def test_noise_is_calibrated_for_all_steps_that_may_be_charged(
    accountant: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the accountant that computes ε afterwards, at the δ without the share of the noise sampler."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(calibration, "calibrate", lambda **figures: asked.update(figures) or "200")
    changes = {"spec.training": {"steps": 100, "expectedBatchSize": 250}, "spec.privacy.reserveSteps": 7}
    plan = resolve_job(job({**changes, "spec.privacy.accountant": accountant}, calibrated=True))[1]
    assert plan.mechanism.noise_multiplier == "200"
    expected = {"target_epsilon": 8.0, "sample_rate": 0.05, "steps": 107, "accountant": accountant}
    assert asked == {**expected, "delta": job_delta("0.00002"), "earlier": ()}


@pytest.mark.slow
def test_job_gets_pld_with_less_noise_unless_it_names_rdp(job: Job) -> None:
    """The reference figures of SST-2 in six epochs at ε 8 (docs/benchmarks.md)."""
    sst2 = {
        "spec.dataset.unit": {"kind": "Example", "atLeast": 6920},
        "spec.training": {"steps": 81, "expectedBatchSize": 512},
        "spec.privacy": {"targetEpsilon": "8", "targetDelta": "1e-5", "reserveSteps": 0},
    }
    assert float(sigma_of(job(sst2, calibrated=True))) == pytest.approx(0.7781, abs=1e-4)
    by_rdp = job({**sst2, "spec.privacy": {**sst2["spec.privacy"], "accountant": "RDP"}}, calibrated=True)
    assert float(sigma_of(by_rdp)) == pytest.approx(0.8277, abs=1e-4)


def sigma_of(job: TenSafeTrainingJob) -> str:
    completed, plan = resolve_job(job)
    assert completed.spec.privacy.noise_multiplier == plan.mechanism.noise_multiplier
    return plan.mechanism.noise_multiplier


@pytest.mark.slow
def test_default_falls_back_to_rdp_where_pld_needs_too_little_noise(job: Job) -> None:
    """Below σ = 0.3 the noise of a coarse grid would be too narrow for PLD."""
    loose = {"spec.training": {"steps": 1, "expectedBatchSize": 5}, "spec.privacy.targetEpsilon": "20"}
    plan = resolve_job(job(loose, calibrated=True))[1]
    assert plan.accountant == "RDP" and float(plan.mechanism.noise_multiplier) < 0.4
    with pytest.raises(
        ManifestError, match=r"PLD needs a noise multiplier of at least 0\.3, and this job's would be 0"
    ):
        resolve_job(job({**loose, "spec.privacy.accountant": "PLD"}, calibrated=True))


@pytest.mark.parametrize(("value", "text"), [("0.00012399", "0.000123"), ("0.1", "0.1"), ("0.000019999", "0.0000199")])
def test_default_delta_has_three_digits(value: str, text: str) -> None:
    assert round_down_delta(Decimal(value)) == text


def test_epsilon_of_a_plan_is_computed_from_its_strings(job: Job) -> None:
    plan: Plan = resolve_job(job({"spec.privacy.noiseMultiplier": "0.9"}))[1]
    assert plan.epsilon(60) == epsilon(
        sample_rate=0.05, noise_multiplier=0.9, steps=60, delta=job_delta("0.00002"), accountant="PLD"
    )
    assert plan.epsilon(0) == 0.0


@pytest.mark.slow
def test_rdp_replaces_pld_beyond_its_number_of_steps(job: Job) -> None:
    """A pod writes the charges. With 2^31 of them PLD would need a hundred gigabytes."""
    plan = resolve_job(job({"spec.privacy.accountant": "PLD", "spec.privacy.noiseMultiplier": "200"}))[1]
    reach, far = composition.PLD_STEPS_LIMIT, 2**31 - 1
    within, beyond, furthest = (COMPUTED.spent(plan, charged) for charged in (reach, reach + 1, far))
    assert within.epsilon_spent < beyond.epsilon_spent < furthest.epsilon_spent
    assert within.epsilon_claimed < beyond.epsilon_claimed < furthest.epsilon_claimed
    assert COMPUTED.spent(replace(plan, accountant="RDP"), far) == furthest


def test_rdp_replaces_pld_beyond_its_epsilon(job: Job) -> None:
    plan = resolve_job(job({"spec.privacy.accountant": "PLD"}))[1]
    events = [PrivacyEvent(sample_rate=plan.mechanism.sample_rate, noise_multiplier="0.3", steps=1000)]
    by_rdp = composition.epsilon_of_events(events, 1e-5)
    assert by_rdp > composition.PLD_EPSILON_LIMIT
    assert composition.epsilon_of_events(events, 1e-5, "PLD") == by_rdp


@pytest.fixture
def cheap_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five for each step, by any accountant."""
    monkeypatch.setattr(composition, "epsilon", lambda *, steps, **_: 5.0 * steps)


def test_noise_with_which_one_step_fits_the_budget_is_accepted(job: Job, cheap_epsilon: None) -> None:
    assert resolve_job(job({"spec.privacy.targetEpsilon": "8"}))[1].affordable_steps(0, 9) == 1
    with pytest.raises(ManifestError, match="the first step alone exceeds"):
        resolve_job(job({"spec.privacy.targetEpsilon": "4.9"}))


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.training": {"steps": 19_999}, "spec.privacy.reserveSteps": 1},
        {"spec.privacy.noiseMultiplier": "0.3"},
        {"spec.privacy.targetEpsilon": "20"},
        {"spec.privacy.targetDelta": "1e-8"},
    ],
)
def test_pld_is_accepted_up_to_its_limits(changes: Mapping[str, Any], job: Job, cheap_epsilon: None) -> None:
    assert resolve_job(job({"spec.privacy.accountant": "PLD", **changes}))[1].accountant == "PLD"


def test_noise_of_exactly_the_smallest_number_of_grid_steps_is_accepted(job: Job, cheap_epsilon: None) -> None:
    exact = {"spec.privacy.noiseMultiplier": f"{MIN_NOISE / 2**22:.22f}".rstrip("0"), "spec.cluster.workers": 1}
    assert resolve_job(job(exact))[1].mechanism.share_sigma == MIN_NOISE


def test_largest_number_of_steps_is_accepted(job: Job, cheap_epsilon: None) -> None:
    most = 2**31 - 1
    every_unit = {"expectedBatchSize": 5000, "epochs": str(most)}
    assert resolve_job(job({"spec.training": every_unit}))[1].steps == most
    with pytest.raises(ManifestError, match=f"more than {most} steps"):
        resolve_job(job({"spec.training": {**every_unit, "epochs": str(most + 1)}}))
