"""A job that its author suspends and resumes."""

from __future__ import annotations

import contextlib

import pytest

from tensafe_api.timestamps import format_time
from tensafe_operator.decision.starting import ANSWER_SECONDS
from tensafe_operator.decision.suspension import SUSPEND_SECONDS
from tests.support.fake_cluster import FakeCluster, FakeOperator, Killed, condition, running_job, started_job


def test_suspended_job_shows_its_plan_and_starts_nothing() -> None:
    cluster, operator = started_job(spec__suspend=True)
    assert cluster.status["phase"] == "Suspended"
    assert float(cluster.status["privacy"]["noiseMultiplier"]) > 0
    assert cluster.ledger is None and not cluster.created
    cluster.suspend(False)
    operator.settle()
    assert cluster.created == ["claims-triage-a1"]


def test_suspension_waits_for_the_checkpoint_and_resuming_is_the_next_attempt() -> None:
    cluster, operator = running_job()
    cluster.suspend(True)
    operator.settle()
    assert condition(cluster, "Running")["reason"] == "Suspending"
    requested = format_time(cluster.now)
    cluster.now += 5
    operator.settle()
    assert cluster.status["suspendRequestedTime"] == requested
    cluster.record_outcome("Suspended")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert cluster.status["phase"] == "Suspended" and "suspendRequestedTime" not in cluster.status
    cluster.remove_terminating_pods()
    cluster.suspend(False)
    operator.settle()
    assert cluster.created == ["claims-triage-a1", "claims-triage-a2"]


def test_attempt_that_does_not_stop_in_time_is_deleted() -> None:
    cluster, operator = running_job()
    cluster.suspend(True)
    operator.settle()
    assert operator.wake == cluster.now + SUSPEND_SECONDS
    cluster.now += SUSPEND_SECONDS
    operator.settle()
    assert cluster.ray_jobs == {}
    assert cluster.status["phase"] == "Suspended"
    assert cluster.status["attempts"][0]["reason"] == "Interrupted"


def test_start_is_stored_before_a_suspension_deletes_the_ray_job() -> None:
    """The author resumes the job in the same moment, so that a status which is written with the deletion is lost."""
    cluster = FakeCluster.with_job()
    operator = FakeOperator(cluster)
    operator.settle()
    assert cluster.created == ["claims-triage-a1"] and "startTime" not in cluster.status["attempts"][0]
    cluster.now += ANSWER_SECONDS
    cluster.suspend(True)
    cluster.take_snapshot()
    operator.reconcile()
    assert cluster.ray_jobs and "startTime" in cluster.status["attempts"][0]
    operator.settle()
    cluster.suspend(False)
    operator.settle()
    assert cluster.created == ["claims-triage-a1", "claims-triage-a2"]


def test_request_that_is_made_again_gives_the_workers_all_of_their_time() -> None:
    cluster, operator = running_job()
    cluster.suspend(True)
    operator.settle()
    cluster.now += SUSPEND_SECONDS - 1
    cluster.suspend(False)
    operator.settle()
    assert (cluster.status["phase"], cluster.status.get("suspendRequestedTime")) == ("Running", None)
    cluster.suspend(True)
    operator.settle()
    cluster.now += SUSPEND_SECONDS - 1
    operator.settle()
    assert list(cluster.ray_jobs) == ["claims-triage-a1"]


def test_suspension_before_the_first_charge_is_immediate_and_not_a_failure() -> None:
    cluster, operator = started_job(**{"spec.retry": {"maxAttempts": 1}})
    for number in (1, 2, 3):
        assert list(cluster.ray_jobs) == [f"claims-triage-a{number}"]
        cluster.start_pods()
        cluster.suspend(True)
        operator.settle()
        assert (cluster.ray_jobs, cluster.status["phase"]) == ({}, "Suspended")
        cluster.remove_terminating_pods()
        cluster.suspend(False)
        operator.settle()
    assert {each.get("reason") for each in cluster.status["attempts"][:-1]} == {"Interrupted"}
    assert condition(cluster, "Failed")["status"] == "False"


@pytest.mark.parametrize("actions", range(3))
def test_operator_that_is_killed_while_it_suspends_a_starting_job_reports_no_failure(actions: int) -> None:
    cluster, operator = started_job()
    cluster.start_pods()
    cluster.suspend(True)
    cluster.take_snapshot()
    with contextlib.suppress(Killed):
        operator.reconcile(dies_after=actions)
    operator.settle()
    assert cluster.status["phase"] == "Suspended"
    assert cluster.status["attempts"][0]["reason"] == "Interrupted"


def test_suspension_that_was_withdrawn_too_late_is_not_a_failure() -> None:
    cluster, operator = started_job()
    cluster.suspend(True)
    operator.reconcile(cluster.observe())
    operator.reconcile(cluster.observe())
    assert cluster.ray_jobs == {}
    cluster.suspend(False)
    operator.settle()
    assert cluster.status["attempts"][0]["reason"] == "Interrupted"
    assert list(cluster.ray_jobs) == ["claims-triage-a2"]
