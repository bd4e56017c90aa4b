"""What is created for an attempt, and what it waits for."""

from __future__ import annotations

from e2e.platform.fixtures.fake_cluster import FakeCluster, FakeOperator, condition, started_job


def test_cleared_status_starts_no_attempt_beside_a_running_one() -> None:
    cluster, operator = started_job()
    cluster.job["status"] = {}
    for _ in range(3):
        operator.settle()
        assert len(cluster.live_ray_jobs()) <= 1
    assert list(cluster.ray_jobs) == ["claims-triage-a2"]


def test_job_waits_for_kuberay_and_then_starts() -> None:
    cluster = FakeCluster.with_job()
    cluster.kuberay = False
    operator = FakeOperator(cluster)
    operator.settle()
    assert condition(cluster, "Stalled")["reason"] == "KubeRayMissing"
    cluster.kuberay = True
    operator.settle()
    assert cluster.created == ["claims-triage-a1"]
