"""A pod that stays Pending although no error of it is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import FakeCluster, FakeOperator, condition, started_job
from tensafe_api import fixes
from tensafe_api.timestamps import format_time
from tensafe_operator.plan.observed import ClusterWarning
from tensafe_operator.plan.pending import PENDING_SECONDS

WORKER = "claims-triage-a1-worker"
HELD = ClusterWarning("Pod", WORKER, "FailedAttachVolume", "Multi-Attach error for volume: used by pod notebook")


def waiting_job(**conditions: tuple[str, str]) -> tuple[FakeCluster, FakeOperator]:
    """A job whose worker has just been created, with these conditions: status and reason by type."""
    cluster, operator = started_job()
    cluster.start_pods()
    cluster.ray_jobs["claims-triage-a1"]["status"] = {"jobDeploymentStatus": "Initializing"}
    now = format_time(cluster.now)
    listed = [
        {"type": kind, "status": status, "reason": reason, "lastTransitionTime": now}
        for kind, (status, reason) in conditions.items()
    ]
    pod = cluster.pods[WORKER]
    pod["metadata"]["creationTimestamp"] = now
    pod["status"] = {"phase": "Pending", "conditions": listed}
    operator.settle()
    return cluster, operator


def stalled(cluster: FakeCluster) -> dict[str, Any]:
    return condition(cluster, "Stalled")


PLACED = {"PodScheduled": ("True", "")}


def test_volume_that_another_pod_holds_is_named() -> None:
    cluster, operator = waiting_job(**PLACED, PodReadyToStartContainers=("False", ""))
    assert (stalled(cluster)["status"], operator.wake) == ("False", cluster.now + PENDING_SECONDS)
    cluster.now += PENDING_SECONDS
    operator.reconcile(replace(cluster.observe(), warnings=(HELD,)))
    assert (stalled(cluster)["status"], stalled(cluster)["reason"]) == ("True", "ContainerRefused")
    assert f"pod {WORKER}: its volumes and network are not ready after 300 s" in stalled(cluster)["message"]
    assert "FailedAttachVolume: Multi-Attach error" in stalled(cluster)["message"]
    cluster.now += 60
    operator.reconcile(replace(cluster.observe(), warnings=(HELD,)))
    assert stalled(cluster)["status"] == "True", "the report stays"
    cluster.pods[WORKER]["status"] = {"phase": "Running"}
    operator.settle()
    assert stalled(cluster)["status"] == "False"


def test_pod_that_has_a_node_no_longer_waits_for_the_scheduler() -> None:
    """An autoscaler has added the node. The scheduler's warning stays for an hour."""
    cluster, operator = waiting_job(**PLACED, PodReadyToStartContainers=("False", ""))
    cluster.now += PENDING_SECONDS
    over = ClusterWarning("Pod", WORKER, "FailedScheduling", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu")
    operator.reconcile(replace(cluster.observe(), warnings=(over,)))
    assert stalled(cluster)["reason"] == "ContainerRefused" and "Insufficient" not in stalled(cluster)["message"]


def test_gates_that_are_not_removed_are_named() -> None:
    cluster, operator = waiting_job(PodScheduled=("False", "SchedulingGated"))
    cluster.now += PENDING_SECONDS
    operator.settle()
    assert (stalled(cluster)["status"], stalled(cluster)["reason"]) == ("True", "Unschedulable")
    assert f"pod {WORKER}: its scheduling gates are not removed after 300 s" in stalled(cluster)["message"]
    assert stalled(cluster)["message"].endswith(fixes.GATES)


@pytest.mark.parametrize("conditions", [{}, {"PodScheduled": ("False", "SchedulerError")}], ids=["none", "error"])
def test_scheduler_that_does_nothing_is_named(conditions: dict[str, tuple[str, str]]) -> None:
    cluster, operator = waiting_job(**conditions)
    cluster.now += PENDING_SECONDS
    operator.settle()
    assert (stalled(cluster)["status"], stalled(cluster)["reason"]) == ("True", "Unschedulable")
    assert "no scheduler has looked for a node" in stalled(cluster)["message"]
    assert "Check cluster.schedulerName" in stalled(cluster)["message"]
    assert "whether the queue in cluster.rayJobLabels exists" in stalled(cluster)["message"]
    assert ("(SchedulerError)" in stalled(cluster)["message"]) == bool(conditions)


def test_pull_of_a_large_image_stalls_no_job() -> None:
    cluster, operator = waiting_job(**PLACED, PodReadyToStartContainers=("True", ""))
    cluster.now += 10 * PENDING_SECONDS
    operator.settle()
    assert stalled(cluster)["status"] == "False"
