"""`lora.initFrom`: every epsilon of a job counts the steps of the earlier trainings of its adapter."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from tensafe_api.accounting import composition, dp_library
from tensafe_api.manifest.text import ManifestError, parse_job
from tensafe_api.resolve import Claim, Plan, ledger_spec, resolve_job
from tensafe_api.resources.mechanism import PrivacyEvent
from tests.support.manifests import MINIMAL, changed

DELTA = composition.job_delta("1e-5")
EARLIER = {"sampleRate": "0.05", "noiseMultiplier": "1.1", "steps": 200}
EVENT = PrivacyEvent.model_validate(EARLIER)


def plan_of(changes: dict[str, Any], *, earlier: list[dict[str, Any]] | None = None) -> tuple[Plan, Claim]:
    """The plan, and the claim that its ledger would hold."""
    lora = {"spec.lora": {"initFrom": {"uri": "s3://b/models/final", "earlierSteps": earlier}}} if earlier else {}
    base = {"spec.dataset.unit.atLeast": 10_000, "spec.training": {"steps": 100, "expectedBatchSize": 500}}
    manifest = changed(MINIMAL, {**base, "spec.privacy": {"targetDelta": "0.00001", **changes}, **lora})
    job, plan = resolve_job(parse_job(manifest))
    return plan, Claim.of(ledger_spec(job, plan, "uid"))


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["RDP", "PLD"])
def test_noise_is_found_for_the_sum_of_both_trainings(accountant: composition.AccountantName) -> None:
    privacy = {"targetEpsilon": "9", "accountant": accountant, "reserveSteps": 0}
    alone, _ = plan_of(privacy)
    plan, claim = plan_of(privacy, earlier=[EARLIER])
    sigma = plan.mechanism.noise_multiplier
    assert float(sigma) > float(alone.mechanism.noise_multiplier)
    own = PrivacyEvent(sample_rate=plan.mechanism.sample_rate, noise_multiplier=sigma, steps=100)
    total = composition.epsilon_of_events([EVENT, own], DELTA, accountant)
    assert claim.epsilon(100) == plan.epsilon(100) == total
    assert 0.99 * 9 < total <= 9
    less = own.model_copy(update={"noise_multiplier": str(float(sigma) - 2e-6)})
    assert composition.epsilon_of_events([EVENT, less], DELTA, accountant) > 9


@pytest.mark.parametrize("target", ["9", "5"], ids=["all planned steps fit", "fewer than planned"])
def test_fewer_steps_fit_the_budget_after_earlier_ones(target: str) -> None:
    privacy = {"targetEpsilon": target, "noiseMultiplier": "0.9", "accountant": "RDP"}
    (_, alone), (_, after) = plan_of(privacy), plan_of(privacy, earlier=[EARLIER])
    few = after.affordable_steps(0, 10_000)
    assert 0 < few < alone.affordable_steps(0, 10_000)
    assert after.epsilon(few) <= float(target) < after.epsilon(few + 1)
    assert after.claimed_steps(0) == min(100, few)


@pytest.mark.slow
def test_job_without_a_step_has_spent_what_the_earlier_one_has() -> None:
    _, claim = plan_of({"targetEpsilon": "9"}, earlier=[EARLIER])
    assert claim.epsilon(0) == composition.epsilon_of_events([EVENT], DELTA, claim.accountant) > 3


@pytest.mark.slow
def test_order_and_grouping_of_earlier_trainings_do_not_matter() -> None:
    one, two = ({**EARLIER, "steps": steps} for steps in (50, 150))
    privacy = {"targetEpsilon": "9", "noiseMultiplier": "1"}
    found = [plan_of(privacy, earlier=each)[0].epsilon(10) for each in ([EARLIER], [one, two], [two, one])]
    assert found == pytest.approx([found[0]] * 3, rel=1e-4)


def test_target_below_what_the_earlier_training_has_spent_is_refused() -> None:
    spent = min(composition.epsilon_of_events([EVENT], DELTA, accountant) for accountant in ("RDP", "PLD"))
    with pytest.raises(ManifestError) as error:
        plan_of({"targetEpsilon": "3"}, earlier=[EARLIER])
    (problem,) = error.value.problems
    assert problem.path == "spec.privacy.targetEpsilon"
    assert (
        f"is below the epsilon of spec.lora.initFrom, which is {composition.format_epsilon(spent)}" in problem.message
    )


@pytest.mark.slow
def test_target_that_only_pld_can_keep_is_kept() -> None:
    """By RDP the earlier training alone exceeds it."""
    by_rdp, by_pld = (composition.epsilon_of_events([EVENT], DELTA, accountant) for accountant in ("RDP", "PLD"))
    target = by_pld + 0.7 * (by_rdp - by_pld)
    plan, _ = plan_of({"targetEpsilon": f"{target:.4f}", "reserveSteps": 0}, earlier=[EARLIER])
    assert plan.accountant == "PLD"
    assert plan.epsilon(100) <= target + 1e-4


@pytest.mark.slow
def test_distributions_of_earlier_trainings_are_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status needs an ε for each number of charged steps. Composing 64 trainings for each would take seconds."""
    made = []
    mechanism = dp_library.from_gaussian_mechanism
    monkeypatch.setattr(
        dp_library, "from_gaussian_mechanism", lambda **figures: made.append(figures) or mechanism(**figures)
    )
    earlier = tuple(
        PrivacyEvent(sample_rate="0.013", noise_multiplier=f"{1.7 + number / 100:.2f}", steps=20)
        for number in range(16)
    )
    figures = {"sample_rate": 0.017, "noise_multiplier": 1.9, "delta": DELTA}
    spent = [
        composition.epsilon(**figures, steps=steps, accountant="PLD", earlier=earlier) for steps in range(1, 101, 10)
    ]
    assert spent == sorted(spent)
    assert len(made) == 16 + 1


def test_equal_trainings_cost_as_much_as_their_steps_together() -> None:
    split = tuple(PrivacyEvent(sample_rate="0.05", noise_multiplier="1.1", steps=steps) for steps in (60, 140))
    own = PrivacyEvent(sample_rate="0.05", noise_multiplier="1.3", steps=40)
    assert composition.epsilon_of_events([*split, own], DELTA, "PLD") == pytest.approx(
        composition.epsilon_of_events([EVENT, own], DELTA, "PLD"), rel=1e-9
    )


TINY = {"sampleRate": "1e-12", "noiseMultiplier": "1000", "steps": 1}
"""Almost no privacy loss, so that it alone would have the finest interval."""
WIDE = {"sampleRate": "0.1", "noiseMultiplier": "5", "steps": 190_000}
MANY = [{"sampleRate": f"{(100 + i) / 10**6:f}", "noiseMultiplier": "0.35", "steps": 100} for i in range(64)]
"""Each has losses of up to 20, and so a distribution with 40,000 intervals."""


@pytest.mark.slow
def test_earlier_steps_of_a_stranger_take_little_memory() -> None:
    """The operator computes this for the job of any user. It took 2.3 GB."""
    composition.load()
    tracemalloc.start()
    try:
        with pytest.raises(ManifestError, match=r"is below the epsilon of spec\.lora\.initFrom"):
            plan_of({"targetEpsilon": "8"}, earlier=[TINY, WIDE])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100e6


@pytest.mark.slow
def test_pld_is_too_large_for_many_wide_kinds_of_steps_and_not_for_a_few() -> None:
    many = [PrivacyEvent.model_validate(each) for each in MANY]
    assert composition.is_pld_too_large(many)
    assert not composition.is_pld_too_large(many[:2])
    assert not composition.is_pld_too_large([EVENT, EVENT])


@pytest.mark.slow
def test_many_different_earlier_steps_are_accounted_by_rdp() -> None:
    plan, _ = plan_of({"targetEpsilon": "20"}, earlier=MANY)
    assert plan.accountant == "RDP"


@pytest.mark.slow
def test_job_whose_earlier_steps_fill_the_limit_of_pld_is_accounted_by_rdp() -> None:
    """With PLD, its epsilon would jump to that of RDP at a step within its plan."""
    found = []
    for free in (1000, 999):  # the job has 100 steps, and may be charged ten times as many
        wide = {"sampleRate": "0.001", "noiseMultiplier": "20", "steps": composition.PLD_STEPS_LIMIT - free}
        plan, _ = plan_of({"targetEpsilon": "8", "reserveSteps": 0, "noiseMultiplier": "1"}, earlier=[wide])
        found.append(plan.accountant)
    assert found == ["PLD", "RDP"]


@pytest.mark.slow
def test_pld_that_was_asked_for_is_refused_for_too_many_earlier_steps() -> None:
    with pytest.raises(ManifestError) as error:
        plan_of({"targetEpsilon": "20", "accountant": "PLD"}, earlier=MANY)
    (problem,) = error.value.problems
    assert problem.path == "spec.privacy.accountant"
    assert "PLD would take too much time and memory for the steps of spec.lora.initFrom: remove" in problem.message


def test_step_with_almost_no_loss_adds_almost_nothing_and_never_less_than_nothing() -> None:
    """It does not make the interval of the others finer than an eighth of their own."""
    alone = composition.epsilon_of_events([EVENT], DELTA, "PLD")
    both = composition.epsilon_of_events([EVENT, PrivacyEvent.model_validate(TINY)], DELTA, "PLD")
    assert alone * 0.9999 <= both < alone * 1.0001
    assert composition.pld_interval([EVENT, PrivacyEvent.model_validate(TINY)]) > composition.pld_interval([EVENT]) / 16
