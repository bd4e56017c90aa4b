"""When RayJobs of ended attempts are deleted."""

from __future__ import annotations

from e2e.platform.fixtures.fake_cluster import running_job
from tensafe_operator.plan.cleanup import KEPT_SECONDS


def test_ray_job_of_a_failed_attempt_is_kept_for_its_logs() -> None:
    cluster, operator = running_job(spec__childrenTTLSeconds=0)
    cluster.end_ray_job("FAILED", "exit code 71")
    operator.settle()
    assert operator.wake == cluster.now + KEPT_SECONDS
    assert cluster.ray_jobs
    cluster.now += KEPT_SECONDS
    operator.settle()
    assert cluster.ray_jobs == {}


def test_ray_job_of_a_successful_job_is_kept_for_its_ttl() -> None:
    cluster, operator = running_job(spec__childrenTTLSeconds=100)
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert operator.wake == cluster.now + 100
    cluster.now += 100
    operator.settle()
    assert cluster.ray_jobs == {}


def test_ray_job_that_still_runs_after_the_end_of_the_job_is_deleted() -> None:
    cluster, operator = running_job()
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    cluster.ray_jobs["claims-triage-a1"]["status"] = {}
    operator.settle()
    assert cluster.ray_jobs == {}
