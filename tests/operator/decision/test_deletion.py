"""A job that is being deleted, while a finalizer keeps it."""

from __future__ import annotations

from tensafe_api.timestamps import format_time
from tests.support.fake_cluster import FakeCluster, FakeOperator, running_job


def delete(cluster: FakeCluster, finalizer: str) -> None:
    cluster.job["metadata"] |= {"deletionTimestamp": format_time(cluster.now), "finalizers": [finalizer]}
    cluster.take_snapshot()


def test_training_ends_and_its_last_charges_are_counted() -> None:
    cluster, operator = running_job()
    delete(cluster, "team.example/audit")
    cluster.charge(5)
    operator.settle()
    assert not cluster.ray_jobs
    assert cluster.status["privacy"]["stepsCharged"] == 10
    cluster.remove_terminating_pods()
    cluster.now += 3600
    operator.settle()
    assert cluster.created == ["claims-triage-a1"], "no attempt follows"


def test_children_that_the_user_keeps_are_left_alone() -> None:
    cluster, operator = running_job()
    delete(cluster, "orphan")
    operator.settle()
    assert list(cluster.ray_jobs) == ["claims-triage-a1"]


def test_job_that_has_not_started_opens_no_ledger() -> None:
    cluster = FakeCluster.with_job()
    delete(cluster, "team.example/audit")
    FakeOperator(cluster).settle()
    assert cluster.ledger is None and not cluster.created


def test_key_of_a_job_that_has_ended_is_deleted() -> None:
    cluster, operator = running_job()
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.reconcile(cluster.observe())
    assert cluster.status["phase"] == "Succeeded" and cluster.keys()
    delete(cluster, "team.example/audit")
    operator.settle()
    assert not cluster.keys()
