"""The order of the decision list."""

from __future__ import annotations

import pytest

from tests.support.fake_cluster import FakeCluster, FakeOperator, Killed, running_job


def test_ledger_then_status_then_ray_job_are_written_in_this_order() -> None:
    cluster = FakeCluster.with_job()
    operator = FakeOperator(cluster)
    with pytest.raises(Killed):
        operator.reconcile(dies_after=1)
    assert {kind for kind, _ in cluster.others} == {"Secret"} and cluster.ledger is None
    operator.reconcile()
    assert cluster.ledger is not None and cluster.status == {} and not cluster.ray_jobs
    operator.reconcile()
    assert cluster.status["ledgerUID"] == cluster.ledger["metadata"]["uid"] and not cluster.ray_jobs
    assert cluster.status["attempts"] == [{"number": 1, "rayJobName": "claims-triage-a1"}]
    before = cluster.status
    operator.reconcile()
    assert list(cluster.ray_jobs) == ["claims-triage-a1"]
    created = {*cluster.corrected, *(kind for kind, _ in cluster.others)}
    assert created == {"RoleBinding", "Secret", "NetworkPolicy", "ConfigMap"}
    assert cluster.status == before and cluster.status["phase"] == "Starting", "one status is written in a start"


def test_final_job_is_never_run_again_whatever_is_deleted() -> None:
    cluster, operator = running_job()
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    cluster.now += 3601
    operator.settle()
    assert cluster.ray_jobs == {}
    cluster.ledger = None
    before = cluster.status
    operator.settle()
    assert cluster.status == before
    assert cluster.created == ["claims-triage-a1"]


def test_edit_of_a_final_job_changes_only_the_observed_generation() -> None:
    cluster, operator = running_job()
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    cluster.job["metadata"]["generation"] = 7
    operator.settle()
    assert (cluster.status["phase"], cluster.status["observedGeneration"]) == ("Succeeded", 7)


def test_job_that_has_ended_has_no_ready_workers() -> None:
    """Nothing counts them after the end, so the number of the last decision before it stayed."""
    cluster, operator = running_job(spec__cluster__workers=1)
    assert cluster.status["workers"] == {"desired": 1, "ready": 1}
    cluster.end_ray_job("FAILED", "exit code 65")
    operator.settle()
    assert cluster.status["phase"] == "Failed"
    assert cluster.status["workers"] == {"desired": 1, "ready": 0}
    cluster.job["status"]["workers"]["ready"] = 1  # an earlier release of the operator wrote it
    operator.settle()
    assert cluster.status["workers"] == {"desired": 1, "ready": 0}
