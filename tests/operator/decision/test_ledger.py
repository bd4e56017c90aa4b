"""The one ledger of a job: created once, never replaced, always counted."""

from __future__ import annotations

import pytest

from tensafe_api.reasons import Reason
from tensafe_operator.decision.admission import Rejected
from tests.support.fake_cluster import FakeCluster, FakeOperator, Killed, condition, running_job


def test_manifest_that_a_newer_release_rejects_does_not_stop_the_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, operator = running_job()
    spent = float(cluster.status["privacy"]["epsilonSpent"])
    rejected = Rejected(Reason.INVALID_MANIFEST, "spec.privacy.accountant: is not known any more")
    monkeypatch.setattr("tensafe_operator.decision.admit", lambda job, opened, ask: rejected)
    cluster.charge(5)
    operator.settle()
    assert cluster.status["privacy"]["stepsCharged"] == 10
    assert float(cluster.status["privacy"]["epsilonSpent"]) > spent
    assert cluster.status["phase"] == "Running"
    assert (condition(cluster, "Stalled")["status"], condition(cluster, "Accepted")["status"]) == ("True", "False")
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert cluster.status["phase"] == "Succeeded"


@pytest.mark.parametrize("outcome", ["Completed", "BudgetExhausted"])
def test_cleared_status_of_an_ended_job_starts_no_attempt(outcome: str) -> None:
    cluster, operator = running_job()
    cluster.record_outcome(outcome)
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    cluster.job["status"] = {}
    cluster.ray_jobs, cluster.pods = {}, {}
    operator.settle()
    assert cluster.created == ["claims-triage-a1"]
    assert cluster.status["phase"] == {"Completed": "Succeeded"}.get(outcome, outcome)
    assert cluster.status["privacy"]["stepsCharged"] == 5


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_lost_ledger_ends_the_job(how: str) -> None:
    cluster, operator = running_job()
    spent = cluster.status["privacy"]["epsilonSpent"]
    ledger, cluster.ledger = cluster.ledger, None
    if how == "replaced":
        assert ledger is not None
        ledger.pop("status")
        cluster.create(ledger)
    operator.settle()
    assert cluster.status["phase"] == "Failed"
    assert condition(cluster, "Failed")["reason"] == "LedgerLost"
    assert cluster.ray_jobs == {}
    assert cluster.status["privacy"]["epsilonSpent"] == spent


def test_lost_ledger_leaves_the_privacy_figures_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer release might calibrate the noise differently, so nothing is computed again."""
    cluster, operator = running_job()
    before = cluster.status["privacy"]
    cluster.ledger = None
    monkeypatch.setattr(
        "tensafe_operator.decision.ledger.status_from_ledger", lambda *_: pytest.fail("the ledger was used")
    )
    operator.settle()
    assert (cluster.status["phase"], cluster.status["privacy"]) == ("Failed", before)


def test_ledger_of_another_job_is_not_used() -> None:
    cluster = FakeCluster.with_job()
    operator = FakeOperator(cluster)
    with pytest.raises(Killed):
        operator.reconcile(dies_after=2)
    assert cluster.ledger is not None
    cluster.ledger["spec"]["jobUID"] = "another"
    operator.settle()
    assert (cluster.status.get("ledgerUID"), cluster.created) == (None, [])
    assert condition(cluster, "Stalled")["reason"] == "NameTaken"


def test_ledger_of_another_release_is_not_lost() -> None:
    cluster, operator = running_job()
    before = (cluster.status["privacy"], set(cluster.ray_jobs))
    assert cluster.ledger is not None
    cluster.ledger["spec"]["madeByANewerRelease"] = True
    operator.settle()
    assert (cluster.status["privacy"], set(cluster.ray_jobs)) == before
    assert (cluster.status["phase"], condition(cluster, "Stalled")["status"]) == ("Running", "True")
    assert "run the release of the operator that created it" in condition(cluster, "Stalled")["message"]


@pytest.mark.parametrize("part", ["charge", "checkpoint", "outcome"])
def test_record_of_a_newer_release_neither_ends_nor_starts_anything(part: str) -> None:
    """A completed job would be run again, if the part that says so were read as missing."""
    cluster, operator = running_job()
    cluster.charge(5)
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    assert cluster.ledger is not None
    written = cluster.ledger["status"]
    match part:
        case "charge":
            written["charges"][0]["newField"] = 1
        case "checkpoint":
            written["releases"][0]["newField"] = 1
        case "outcome":
            written["outcome"] = "NewOutcome"
    before = cluster.status
    operator.settle()
    assert condition(cluster, "Stalled")["reason"] == "InternalError"
    assert "run the release of the operator that created it" in condition(cluster, "Stalled")["message"]
    assert cluster.status["blocker"]["reason"] == "InternalError"
    assert (cluster.status["phase"], cluster.status["attempts"]) == ("Running", before["attempts"])
    assert cluster.status["resolved"] == before["resolved"]
    assert cluster.created == ["claims-triage-a1"]
    for body in (*written["charges"], *written["releases"]):
        body.pop("newField", None)
    written["outcome"] = "Completed"
    operator.settle()
    assert cluster.status["phase"] == "Succeeded", "the operator was upgraded"


def test_charges_after_the_end_of_the_job_are_counted() -> None:
    """Its pods have two minutes to save a checkpoint."""
    cluster, operator = running_job(spec__activeDeadlineSeconds=100)
    cluster.now += 100
    operator.settle()
    ended = cluster.status
    assert (ended["phase"], ended["privacy"]["stepsCharged"]) == ("Failed", 5)
    cluster.charge(10)
    operator.settle()
    after = cluster.status
    assert after["privacy"]["stepsCharged"] == 15
    assert float(after["privacy"]["epsilonSpent"]) > float(ended["privacy"]["epsilonSpent"])
    assert (after["phase"], after["conditions"]) == (ended["phase"], ended["conditions"])


def test_ledger_prepared_with_other_figures_is_not_used() -> None:
    cluster = FakeCluster.with_job()
    operator = FakeOperator(cluster)
    with pytest.raises(Killed):
        operator.reconcile(dies_after=2)
    assert cluster.ledger is not None
    cluster.ledger["spec"]["mechanism"]["sampleRate"] = "0.0000001"
    operator.settle()
    assert (cluster.status.get("ledgerUID"), cluster.created) == (None, [])
    assert condition(cluster, "Stalled")["reason"] == "NameTaken"
