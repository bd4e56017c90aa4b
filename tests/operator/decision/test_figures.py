"""The figures of a decision: what is asked for, and that a shown ε is never too small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tensafe_api.resolve import Claim, resolve_job
from tensafe_api.timestamps import format_time
from tensafe_operator.decision import decide
from tensafe_operator.decision.admission import CALIBRATION_SECONDS, Admission
from tensafe_operator.decision.figures import POINTS, AllowedSteps, AskedFigures, Epsilon, Figure
from tensafe_operator.decision.parsing import parse_ledger_spec
from tests.operator.decision.test_privacy_status import publish_checkpoint
from tests.support.fake_cluster import SETTINGS, FakeCluster, FakeOperator, condition, running_job

PLANNED = 1000


def claim_of(cluster: FakeCluster) -> Claim:
    spec = parse_ledger_spec(cluster.ledger)
    assert spec is not None
    return Claim.of(spec)


@pytest.fixture(scope="module")
def claim() -> Claim:
    cluster, _ = running_job(spec__training={"steps": PLANNED, "expectedBatchSize": 250})
    return claim_of(cluster)


def computing(figure: Figure[Any]) -> Any:
    return figure.compute()


@pytest.mark.slow
@pytest.mark.parametrize("charged", [0, 1, 15, 16, 17, 500, 999, 1000, 1001, 1030])
def test_shown_epsilon_is_never_below_that_of_the_charged_steps(claim: Claim, charged: int) -> None:
    shown, exact = (AskedFigures(computing, exact).spent(claim, charged) for exact in (False, True))
    assert shown is not None and exact is not None
    assert exact.epsilon_spent == claim.epsilon(charged)
    assert exact.epsilon_spent <= shown.epsilon_spent <= shown.epsilon_claimed
    assert shown.epsilon_claimed == exact.epsilon_claimed == claim.epsilon_claimed(charged)
    assert shown.claimed_steps == exact.claimed_steps == claim.claimed_steps(charged)
    if charged >= PLANNED:
        assert shown == exact, "it is exact at the end of the plan, and beyond it"


@pytest.mark.slow
def test_plan_needs_few_figures(claim: Claim) -> None:
    asked: set[Figure[Any]] = set()

    def ask(figure: Figure[Any]) -> Any:
        asked.add(figure)
        return (PLANNED, 1.0, 0.0) if isinstance(figure, AllowedSteps) else 0.5

    shown = [AskedFigures(ask).spent(claim, charged) for charged in range(PLANNED + 1)]
    assert None not in shown and len(asked) <= POINTS + 1


@pytest.mark.slow
def test_short_plan_is_exact_at_each_step() -> None:
    cluster, _ = running_job()
    claim = claim_of(cluster)
    for charged in range(21):
        shown = AskedFigures(computing).spent(claim, charged)
        assert shown is not None and shown.epsilon_spent == claim.epsilon(charged)


def without_figures(cluster: FakeCluster, known: Mapping[Figure[Any], Any] | None = None) -> Any:
    return decide(replace(cluster.observe(), figures=known or {}), cluster.now, SETTINGS)


def test_new_job_waits_for_its_noise_and_says_so() -> None:
    created = format_time(1_800_000_000)
    cluster = FakeCluster.with_job(metadata__creationTimestamp=created)
    early = without_figures(cluster)
    assert early.status.phase is None and early.wake == cluster.now + CALIBRATION_SECONDS
    cluster.now += CALIBRATION_SECONDS
    decision = without_figures(cluster)
    (figure,) = decision.figures
    assert isinstance(figure, Admission) and not decision.actions
    assert decision.status.phase == "Pending" and decision.status.privacy.epsilon_claimed is None
    assert any("calibrated" in each.message for each in decision.status.conditions)
    assert without_figures(cluster, {figure: figure.compute()}).actions


def test_figures_of_a_running_job_stay_together_until_the_next_ones_are_there() -> None:
    cluster, _ = running_job()
    before = cluster.status["privacy"]
    cluster.charge(5)
    publish_checkpoint(cluster)
    waiting = without_figures(cluster)
    assert waiting.status.privacy.model_dump(by_alias=True, exclude_none=True) == before
    assert waiting.status.checkpoints == ()
    known = {each: each.compute() for each in waiting.figures}
    further = without_figures(cluster, known)
    known |= {each: each.compute() for each in further.figures}
    done = without_figures(cluster, known)
    assert done.status.privacy.steps_charged == 10
    assert [each.steps_charged for each in done.status.checkpoints] == [10]


def test_epsilon_of_a_listed_checkpoint_is_not_asked_for_again() -> None:
    cluster, operator = running_job()
    publish_checkpoint(cluster)
    operator.settle()
    (listed,) = cluster.status["checkpoints"]
    cluster.charge(5)
    asked = without_figures(cluster).figures
    assert Epsilon(claim_of(cluster), listed["stepsCharged"]) not in asked


@pytest.mark.slow
def test_job_ends_with_the_epsilon_of_exactly_its_charged_steps() -> None:
    cluster, operator = running_job(spec__training={"steps": PLANNED, "expectedBatchSize": 250})
    cluster.charge(12)
    operator.settle()
    claim = claim_of(cluster)
    assert float(cluster.status["privacy"]["epsilonSpent"]) > claim.epsilon(17) + 0.001
    cluster.end_ray_job("FAILED", "exit code 71")
    known = {figure: figure.compute() for figure in (AllowedSteps(claim), Epsilon(claim, 32))}
    waiting = without_figures(cluster, known)
    assert waiting.status.phase == "Running" and not waiting.actions
    assert Epsilon(claim, 17) in waiting.figures
    operator.settle()
    assert cluster.status["phase"] == "Failed"
    assert float(cluster.status["privacy"]["epsilonSpent"]) == pytest.approx(claim.epsilon(17), abs=0.001)


@pytest.mark.slow
def test_shown_epsilon_does_not_fall_when_the_workers_stop_or_a_nearer_point_is_computed() -> None:
    cluster, operator = running_job(spec__training={"steps": PLANNED, "expectedBatchSize": 250})
    claim = claim_of(cluster)
    cluster.charge(12)
    known = {figure: figure.compute() for figure in (AllowedSteps(claim), Epsilon(claim, 128))}
    cluster.job["status"] = without_figures(cluster, known).status.model_dump(
        by_alias=True, mode="json", exclude_none=True
    )
    assert float(cluster.status["privacy"]["epsilonSpent"]) >= claim.epsilon(128)
    shown = cluster.status["privacy"]["epsilonSpent"]
    operator.settle()
    assert cluster.status["privacy"]["epsilonSpent"] == shown
    cluster.record_outcome("Suspended")
    operator.settle()
    assert cluster.status["privacy"]["epsilonSpent"] == shown


def compute_asked(cluster: FakeCluster, operator: FakeOperator) -> None:
    """The accountant computes what the last decision has asked for, and forgets everything else."""
    cluster.figures = {figure: figure.compute() for figure in operator.asked}


def reconcile(cluster: FakeCluster, operator: FakeOperator) -> None:
    cluster.take_snapshot()
    operator.reconcile()


@pytest.mark.slow
@pytest.mark.parametrize("planned", [60, 100, PLANNED])
def test_epsilon_keeps_up_with_a_job_that_charges_faster_than_it_is_computed(planned: int) -> None:
    """With each figure that arrives, the job has passed a point, or several."""
    cluster, operator = running_job(spec__training={"steps": planned, "expectedBatchSize": 250})
    claim, charged, lag, shown = claim_of(cluster), 5, 0, 0.0
    for _ in range(12):
        cluster.charge(planned // 20)
        charged += planned // 20
        reconcile(cluster, operator)
        compute_asked(cluster, operator)
        privacy = cluster.status["privacy"]
        assert float(privacy["epsilonSpent"]) >= max(shown, claim.epsilon(privacy["stepsCharged"]) - 1e-9)
        lag, shown = max(lag, charged - privacy["stepsCharged"]), float(privacy["epsilonSpent"])
    assert lag <= planned // 8


def test_status_shows_progress_and_model_with_the_epsilon_of_the_same_steps() -> None:
    cluster, operator = running_job()
    cluster.figures = {}
    before = cluster.status
    cluster.charge(17)  # two more than planned
    cluster.record_outcome("Completed")
    reconcile(cluster, operator)
    assert {**cluster.status, "conditions": before["conditions"]} == before
    for _ in range(2):
        compute_asked(cluster, operator)
        reconcile(cluster, operator)
    assert cluster.status["progress"]["step"] == 20 and cluster.status["finalModel"]
    privacy = cluster.status["privacy"]
    assert privacy["stepsCharged"] == privacy["stepsClaimed"] == 22
    assert float(privacy["epsilonSpent"]) == pytest.approx(claim_of(cluster).epsilon(22), abs=0.001)


def test_deadline_ends_a_job_that_charges_faster_than_its_epsilon_is_computed() -> None:
    cluster, operator = running_job(
        spec__training={"steps": PLANNED, "expectedBatchSize": 250}, spec__activeDeadlineSeconds=600
    )
    cluster.now += 600
    for _ in range(3):
        cluster.charge(1)
        reconcile(cluster, operator)
        compute_asked(cluster, operator)
        assert cluster.ray_jobs == {}
    assert cluster.status["attempts"][0]["reason"] == "DeadlineExceeded"
    assert cluster.status["phase"] == "Running", "its pods still charge"
    for _ in range(3):
        reconcile(cluster, operator)
        compute_asked(cluster, operator)
    assert (cluster.status["phase"], condition(cluster, "Failed")["reason"]) == ("Failed", "DeadlineExceeded")
    privacy = cluster.status["privacy"]
    assert privacy["stepsCharged"] == 8
    assert float(privacy["epsilonSpent"]) == pytest.approx(claim_of(cluster).epsilon(8), abs=0.001)
    assert cluster.created == ["claims-triage-a1"]


def test_job_that_has_ended_needs_figures_for_late_charges_alone() -> None:
    """An operator that starts again looks at each job that has ended."""
    cluster, operator = running_job()
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert cluster.status["phase"] == "Succeeded"
    ended = without_figures(cluster)
    assert ended.figures == () and ended.status.privacy.steps_charged == 5
    cluster.charge(2)
    claim = claim_of(cluster)
    assert set(without_figures(cluster, {AllowedSteps(claim): (20, 1.0, 0.0)}).figures) == {
        AllowedSteps(claim),
        Epsilon(claim, 7),
    }


def test_figure_that_cannot_be_computed_fails_the_decision() -> None:
    cluster = FakeCluster.with_job()
    (figure,) = without_figures(cluster).figures
    with pytest.raises(ArithmeticError):
        without_figures(cluster, {figure: ArithmeticError("no finite bound")})


def test_admission_is_the_plan_of_the_manifest() -> None:
    cluster = FakeCluster.with_job()
    FakeOperator(cluster).settle()
    assert condition(cluster, "Accepted")["status"] == "True"
    (figure,) = without_figures(FakeCluster.with_job()).figures
    admitted = figure.compute()
    assert admitted.claim == resolve_job(admitted.job)[1].claim == claim_of(cluster)
