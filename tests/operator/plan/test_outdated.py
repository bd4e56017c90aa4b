"""A warning counts until its cause is over, although its Event stays for an hour."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import FakeCluster, running_job, start_next_attempt, started_job
from tensafe_api.reasons import Reason
from tensafe_api.timestamps import format_time
from tensafe_operator.plan.blockers import find_blocker
from tensafe_operator.plan.observed import ClusterWarning

ONE_WORKER = {"spec__cluster__workers": 1}
CLUSTER = "claims-triage-a1-x"
RAY_JOB = "claims-triage-a1"
REFUSED_CLUSTER = f"Failed to create RayCluster clinic/{CLUSTER}"
REFUSED_SERVICE = f"Failed to create the service clinic/{RAY_JOB}-head-svc"
TAKEN_CLUSTER = f'rayclusters.ray.io "{CLUSTER}" already exists'
TAKEN_SERVICE = f'services "{RAY_JOB}-head-svc" already exists'
DENIED = 'admission webhook "teams.example.com" denied the request: a job of this team'
"""Texts of KubeRay 1.6, and of the API server."""
REFUSED = "pods is forbidden: not allowed"


def blocker(cluster: FakeCluster, *warnings: ClusterWarning) -> Reason | None:
    found = find_blocker(replace(cluster.observe(), warnings=warnings))
    return found and found.reason


def refusal(reason: str, kind: str = "RayCluster", name: str = CLUSTER) -> ClusterWarning:
    return ClusterWarning(kind, name, reason, REFUSED)


def start_pods_without_status(cluster: FakeCluster) -> None:
    cluster.start_pods()
    cluster.ray_jobs["claims-triage-a1"]["status"] = {"jobDeploymentStatus": "Initializing", "rayClusterName": CLUSTER}


@pytest.mark.parametrize(
    ("warning", "created"),
    [
        (refusal("FailedToCreateHeadPod"), "claims-triage-a1-head"),
        (refusal("FailedToCreateWorkerPod"), "claims-triage-a1-worker"),
        (refusal("FailedToCreateService"), "claims-triage-a1-head"),
        (refusal("FailedToCreateRayCluster", "RayJob", "claims-triage-a1"), "claims-triage-a1-head"),
    ],
    ids=lambda value: value.reason if isinstance(value, ClusterWarning) else "",
)
def test_refused_object_blocks_the_job_until_kuberay_has_created_it(warning: ClusterWarning, created: str) -> None:
    cluster, _ = started_job(**ONE_WORKER)
    start_pods_without_status(cluster)
    pods, cluster.pods = cluster.pods, {}
    assert blocker(cluster, warning) is Reason.FORBIDDEN
    cluster.pods = {created: pods[created]}
    assert blocker(cluster, warning) is None


@pytest.mark.parametrize(
    "warning",
    [
        ClusterWarning("RayJob", RAY_JOB, "FailedToCreateRayCluster", f"{REFUSED_CLUSTER}: {TAKEN_CLUSTER}"),
        ClusterWarning("RayJob", RAY_JOB, "FailedToCreateService", f"{REFUSED_SERVICE}, {TAKEN_SERVICE}"),
    ],
    ids=["RayCluster", "Service of the RayJob"],
)
def test_what_kuberay_creates_twice_is_not_refused(warning: ClusterWarning) -> None:
    """KubeRay's cache can lack an object that it has just created. Then it creates it again, and warns."""
    cluster, _ = started_job(**ONE_WORKER)
    assert blocker(cluster, warning) is None


@pytest.mark.parametrize(
    "warning",
    [
        ClusterWarning(
            "RayCluster",
            CLUSTER,
            "FailedToCreateService",
            f'Failed creating service, services "{CLUSTER}" already exists',
        ),
        ClusterWarning(
            "RayCluster",
            CLUSTER,
            "FailedToCreateHeadPod",
            f'Failed to create head Pod, pods "{CLUSTER}" already exists',
        ),
        ClusterWarning("RayJob", RAY_JOB, "FailedToCreateRayCluster", f"{REFUSED_CLUSTER}: {DENIED} already exists"),
        ClusterWarning("RayJob", RAY_JOB, "FailedToCreateService", f"{REFUSED_SERVICE}, {DENIED}: {TAKEN_SERVICE}"),
        ClusterWarning("RayJob", RAY_JOB, "FailedToCreateService", f"{REFUSED_SERVICE}, {TAKEN_SERVICE} elsewhere"),
    ],
    ids=["Service of the RayCluster", "head", "webhook", "webhook that names an object", "other words"],
)
def test_name_that_another_object_has_and_a_denial_in_such_words_are_refusals(warning: ClusterWarning) -> None:
    cluster, _ = started_job(**ONE_WORKER)
    assert blocker(cluster, warning) is Reason.FORBIDDEN


def test_workers_are_blocked_until_the_last_one_is_created() -> None:
    cluster, _ = started_job(spec__cluster__workers=2)
    start_pods_without_status(cluster)
    assert blocker(cluster, refusal("FailedToCreateWorkerPod")) is Reason.FORBIDDEN


def test_problem_that_follows_a_fixed_one_is_reported() -> None:
    """A quota was raised, and then the image cannot be pulled."""
    cluster, _ = started_job(**ONE_WORKER)
    start_pods_without_status(cluster)
    waiting = {"name": "ray", "image": "none:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    cluster.pods["claims-triage-a1-worker"]["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    fixed = ClusterWarning("RayCluster", CLUSTER, "FailedToCreateWorkerPod", "exceeded quota: few")
    assert blocker(cluster, fixed) is Reason.IMAGE_PULL_FAILED


@pytest.mark.parametrize(
    ("part", "change"), [("metadata", {"deletionTimestamp": format_time(0)}), ("status", {"phase": "Failed"})]
)
def test_worker_that_is_lost_and_refused_again_blocks_the_job(part: str, change: dict[str, Any]) -> None:
    cluster, _ = running_job(**ONE_WORKER)
    assert blocker(cluster, refusal("FailedToCreateWorkerPod")) is None
    cluster.pods["claims-triage-a1-worker"][part].update(change)
    assert blocker(cluster, refusal("FailedToCreateWorkerPod")) is Reason.FORBIDDEN


@pytest.mark.parametrize(
    ("part", "change"), [("metadata", {"deletionTimestamp": format_time(0)}), ("status", {"phase": "Failed"})]
)
@pytest.mark.parametrize(
    ("reason", "role", "kind", "name"),
    [
        ("FailedToCreateWorkerPod", "worker", "RayCluster", CLUSTER),
        ("FailedToCreateHeadPod", "head", "RayCluster", CLUSTER),
        ("FailedToCreateService", "head", "RayCluster", CLUSTER),
        ("FailedToCreateRayCluster", "worker", "RayJob", RAY_JOB),
    ],
)
def test_refusal_before_a_pod_that_is_lost_now_is_over(
    reason: str, role: str, kind: str, name: str, part: str, change: dict[str, Any]
) -> None:
    """A quota was raised, and later the node of the pod died: its Event is still there."""
    cluster, _ = started_job(**ONE_WORKER)
    start_pods_without_status(cluster)
    pod = cluster.pods[f"{RAY_JOB}-{role}"]
    pod["metadata"]["creationTimestamp"] = format_time(cluster.now)
    pod[part].update(change)
    cluster.pods = {role: pod}
    refused = refusal(reason, kind, name)
    assert blocker(cluster, replace(refused, time=cluster.now - 1)) is None
    assert blocker(cluster, replace(refused, time=cluster.now + 1)) is Reason.FORBIDDEN
    assert blocker(cluster, refused) is Reason.FORBIDDEN, "it is not known when"


def test_worker_that_is_replaced_does_not_hide_that_another_one_is_refused() -> None:
    """KubeRay repeats its Event every five minutes only."""
    cluster, _ = started_job(spec__cluster__workers=2)
    start_pods_without_status(cluster)
    worker = cluster.pods[f"{RAY_JOB}-worker"]
    worker["metadata"]["creationTimestamp"] = format_time(cluster.now)
    refused = replace(refusal("FailedToCreateWorkerPod"), time=cluster.now - 1)
    assert blocker(cluster, refused) is Reason.FORBIDDEN
    lost = {**worker, "metadata": {**worker["metadata"], "deletionTimestamp": format_time(cluster.now)}}
    cluster.pods["lost"] = lost
    assert blocker(cluster, refused) is None, "KubeRay replaces it when it is gone"


def test_service_of_a_ray_job_blocks_the_job_until_it_is_submitted() -> None:
    cluster, _ = started_job(**ONE_WORKER)
    start_pods_without_status(cluster)
    warning = refusal("FailedToCreateService", "RayJob", "claims-triage-a1")
    assert blocker(cluster, warning) is Reason.FORBIDDEN
    cluster.ray_jobs["claims-triage-a1"]["status"]["jobStatus"] = "PENDING"
    assert blocker(cluster, warning) is None


@pytest.mark.parametrize(
    "warning",
    [refusal("FailedToCreateHeadPod"), refusal("FailedToCreateRayCluster", "RayJob", "claims-triage-a1")],
    ids=["RayCluster", "RayJob"],
)
def test_warning_of_an_earlier_attempt_does_not_block_the_next_one(warning: ClusterWarning) -> None:
    """The RayJob of an attempt is kept for its logs, and with it the last warning about it."""
    cluster, operator = running_job(**ONE_WORKER)
    start_next_attempt(cluster, operator)
    assert "claims-triage-a1" in cluster.ray_jobs
    assert blocker(cluster, warning) is None


def test_warning_about_a_ray_cluster_that_a_queue_has_evicted_is_outdated() -> None:
    cluster, _ = started_job(**ONE_WORKER)
    cluster.ray_jobs["claims-triage-a1"]["status"] = {"rayClusterName": "claims-triage-a1-y"}
    assert blocker(cluster, refusal("FailedToCreateHeadPod")) is None
    assert blocker(cluster, refusal("FailedToCreateHeadPod", name="claims-triage-a1-y")) is Reason.FORBIDDEN
