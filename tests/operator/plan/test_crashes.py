"""A pod that fails right after its start is replaced by KubeRay at once and without end."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.platform.fakes import statuses
from e2e.platform.fixtures.fake_cluster import FakeCluster, FakeOperator, condition, running_job, started_job
from tensafe_api.timestamps import format_time

ONE_WORKER = {"spec__cluster__workers": 1}
NAME, HEAD = "claims-triage-a1", "claims-triage-a1-head"


def starting_job() -> tuple[FakeCluster, FakeOperator]:
    cluster, operator = started_job(**ONE_WORKER)
    cluster.start_pods()
    cluster.ray_jobs[NAME]["status"] = statuses.initializing("claims-triage-a1-x", format_time(cluster.now))
    return cluster, operator


def failed(cluster: FakeCluster, seconds: float = 1.0, *, phase: str = "Failed", **more: Any) -> dict[str, Any]:
    """The status of a pod whose container ran for so long."""
    ended = {
        "exitCode": 127,
        "reason": "StartError",
        "startedAt": format_time(cluster.now - seconds),
        "finishedAt": format_time(cluster.now),
    }
    return {"phase": phase, "containerStatuses": [{"name": "ray-head", "state": {"terminated": ended}}], **more}


def replace_head(cluster: FakeCluster, name: str, status: dict[str, Any]) -> None:
    (old,) = (each for each, pod in cluster.pods.items() if pod["metadata"]["labels"]["ray.io/node-type"] == "head")
    pod = cluster.pods.pop(old)
    cluster.pods[name] = {"metadata": {**pod["metadata"], "name": name}, "status": status}


def stalled(cluster: FakeCluster) -> tuple[str, str]:
    found = condition(cluster, "Stalled")
    return found["status"], found["reason"]


def test_crash_is_reported_once_until_all_pods_are_ready() -> None:
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", failed(cluster))
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    message = condition(cluster, "Stalled")["message"]
    assert "pod head-1: container ray-head ended with exit code 127 (StartError)" in message
    before = cluster.status
    for number in range(2, 5):
        for status in ({"phase": "Pending"}, failed(cluster)):
            replace_head(cluster, f"head-{number}", status)
            operator.settle()
            assert cluster.status == before, "a new pod every second must not cause a write every second"
    replace_head(cluster, HEAD, statuses.ready_pod())
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 3600.0},
        {"reason": "Preempting"},
        {"phase": "Running"},
    ],
    ids=["ran for an hour", "preempted", "another container runs"],
)
def test_pod_that_ends_otherwise_is_no_crash(change: dict[str, Any]) -> None:
    cluster, operator = starting_job()
    replace_head(cluster, HEAD, failed(cluster, **change))
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")


def test_pod_that_was_stopped_is_no_crash() -> None:
    cluster, operator = starting_job()
    replace_head(cluster, HEAD, failed(cluster))
    cluster.pods[HEAD]["metadata"]["deletionTimestamp"] = format_time(cluster.now)
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")


@pytest.mark.parametrize("reason", ["PreemptionByScheduler", "EvictionByEvictionAPI", "TerminationByKubelet"])
def test_pod_that_the_cluster_stops_is_no_crash(reason: str) -> None:
    """An eviction ends a pod before it is deleted: its containers end with an exit code, as after a crash."""
    cluster, operator = starting_job()
    condition_of_pod = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    replace_head(cluster, HEAD, failed(cluster, reason="Evicted", conditions=[condition_of_pod]))
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")


def test_pod_that_the_node_rejects_is_a_crash() -> None:
    cluster, operator = starting_job()
    rejected = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU is healthy"}
    replace_head(cluster, HEAD, rejected)
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    assert f"pod {HEAD}: UnexpectedAdmissionError: no GPU is healthy" in condition(cluster, "Stalled")["message"]


def test_other_blocker_that_follows_a_crash_is_reported() -> None:
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", failed(cluster))
    operator.settle()
    waiting = {"name": "ray-head", "image": "none:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    replace_head(cluster, "head-2", {"phase": "Pending", "containerStatuses": [waiting]})
    operator.settle()
    assert stalled(cluster) == ("True", "ImagePullFailed")


def test_worker_of_a_running_job_that_crashes_stalls_it_until_it_is_ready() -> None:
    cluster, operator = running_job(**ONE_WORKER)
    worker = cluster.pods["claims-triage-a1-worker"]
    before = worker["status"]
    for status in (failed(cluster), {"phase": "Pending"}):
        worker["status"] = status
        operator.settle()
        assert (cluster.status["phase"], stalled(cluster)) == ("Starting", ("True", "CrashLoop"))
    worker["status"] = before
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)) == ("Running", ("False", "NotBlocked"))


def test_next_attempt_starts_without_the_crash_of_the_last_one() -> None:
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", failed(cluster))
    operator.settle()
    cluster.suspend(True)
    operator.settle()
    cluster.pods.clear()
    cluster.suspend(False)
    operator.settle()
    assert cluster.created[-1] == "claims-triage-a2"
    assert stalled(cluster) == ("False", "NotBlocked")
