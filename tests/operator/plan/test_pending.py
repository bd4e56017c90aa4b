"""A pod that stays Pending: without a known error, or because no node fits it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import SETTINGS, FakeCluster, FakeOperator, condition, running_job, started_job
from tensafe_api import fixes
from tensafe_api.timestamps import format_time
from tensafe_operator.kinds import KINDS
from tensafe_operator.plan import decide
from tensafe_operator.plan.observed import ClusterWarning
from tensafe_operator.plan.pending import NODE_SECONDS, PENDING_SECONDS
from tensafe_operator.runtime.cache import KEPT_IN_NAMESPACE

HEAD, WORKER = "claims-triage-a1-head", "claims-triage-a1-worker"
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
    assert "Check whether the scheduler in cluster.schedulerName runs" in stalled(cluster)["message"]
    assert "whether the queue in cluster.rayJobLabels exists" in stalled(cluster)["message"]
    assert ("(SchedulerError)" in stalled(cluster)["message"]) == bool(conditions)


def test_pull_of_a_large_image_stalls_no_job() -> None:
    cluster, operator = waiting_job(**PLACED, PodReadyToStartContainers=("True", ""))
    cluster.now += 10 * PENDING_SECONDS
    operator.settle()
    assert stalled(cluster)["status"] == "False"


def worker_in_init_container(name: str, *, head_ready: bool = True) -> tuple[FakeCluster, FakeOperator]:
    """A job whose worker has just begun to run this init container."""
    cluster, operator = waiting_job(**PLACED, PodReadyToStartContainers=("True", ""))
    running = {"running": {"startedAt": format_time(cluster.now)}}
    cluster.pods[WORKER]["status"]["initContainerStatuses"] = [
        {"name": "certificate", "state": {"terminated": {"exitCode": 0}}},
        {"name": name, "state": running},
    ]
    ready = {"type": "Ready", "status": str(head_ready), "lastTransitionTime": format_time(cluster.now - 60)}
    cluster.pods[HEAD]["status"] = {"phase": "Running", "conditions": [ready]}
    operator.settle()
    return cluster, operator


def test_worker_that_does_not_reach_a_head_that_is_ready_is_named() -> None:
    """KubeRay's container asks again and again: after a mistake in a NetworkPolicy, or with two authorities."""
    cluster, operator = worker_in_init_container("wait-gcs-ready")
    assert (stalled(cluster)["status"], operator.wake) == ("False", cluster.now + PENDING_SECONDS)
    cluster.now += PENDING_SECONDS
    operator.settle()
    assert (stalled(cluster)["status"], stalled(cluster)["reason"]) == ("True", "NotSubmitted")
    sentence = "its container wait-gcs-ready has not reached the head, which is ready, in 300 s"
    assert f"pod {WORKER}: {sentence}" in stalled(cluster)["message"]
    assert stalled(cluster)["message"].endswith(fixes.HEAD_NOT_REACHED)
    cluster.pods[WORKER]["metadata"]["deletionTimestamp"] = format_time(cluster.now)
    operator.settle()
    assert stalled(cluster)["status"] == "False", "it does nothing any more"
    del cluster.pods[WORKER]["metadata"]["deletionTimestamp"]
    operator.settle()
    assert stalled(cluster)["reason"] == "NotSubmitted"
    cluster.pods[WORKER]["status"] = {"phase": "Running"}
    operator.settle()
    assert stalled(cluster)["status"] == "False"


@pytest.mark.parametrize(("name", "head_ready"), [("wait-gcs-ready", False), ("copy-model", True)])
def test_worker_whose_head_starts_or_that_prepares_itself_is_waited_for(name: str, head_ready: bool) -> None:
    cluster, operator = worker_in_init_container(name, head_ready=head_ready)
    cluster.now += 10 * PENDING_SECONDS
    operator.settle()
    assert stalled(cluster)["status"] == "False"


NO_ROOM = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}


def job_without_a_node() -> tuple[FakeCluster, FakeOperator]:
    """A job for whose worker the scheduler has just found no node."""
    cluster, operator = waiting_job(PodScheduled=("False", "Unschedulable"))
    cluster.pods[WORKER]["status"]["conditions"][0]["message"] = "0/3 nodes: no GPU"
    operator.settle()
    return cluster, operator


def test_job_reports_at_once_that_no_node_fits_and_waits_for_an_autoscaler() -> None:
    """Argo CD would otherwise show it as Degraded, and kstatus as failed, for as long as each machine starts."""
    cluster, operator = job_without_a_node()
    for kind in ("Ready", "Reconciling"):
        assert condition(cluster, kind)["reason"] == "Unschedulable"
        assert f"pod {WORKER}: 0/3 nodes: no GPU: Free resources" in condition(cluster, kind)["message"]
    assert (stalled(cluster)["status"], condition(cluster, "Reconciling")["status"]) == ("False", "True")
    assert operator.wake == cluster.now + NODE_SECONDS


def test_job_is_stalled_where_no_node_comes_in_ten_minutes() -> None:
    cluster, operator = job_without_a_node()
    cluster.now += NODE_SECONDS - 1
    operator.settle()
    assert stalled(cluster)["status"] == "False"
    cluster.now += 1
    operator.settle()
    assert (stalled(cluster)["status"], stalled(cluster)["reason"]) == ("True", "Unschedulable")
    assert condition(cluster, "Reconciling")["status"] == "False"
    cluster.now += 60
    operator.settle()
    assert stalled(cluster)["status"] == "True", "the report stays"
    cluster.pods[WORKER]["status"] = {"phase": "Running"}
    operator.settle()
    assert (stalled(cluster)["status"], condition(cluster, "Ready")["reason"]) == ("False", "Starting")


def test_no_autoscaler_is_waited_for_where_a_claim_does_not_exist() -> None:
    cluster, operator = job_without_a_node()
    cluster.pods[WORKER]["status"]["conditions"][0]["message"] = 'persistentvolumeclaim "data" not found'
    operator.settle()
    assert (stalled(cluster)["status"], stalled(cluster)["reason"]) == ("True", "Unschedulable")
    assert stalled(cluster)["message"].endswith(fixes.CLAIM_MISSING)


def test_each_lost_worker_of_a_running_job_may_wait_for_a_node() -> None:
    """As after a drain without room on other nodes: the ledger still shows recent charges."""
    cluster, operator = running_job()
    (worker,) = (pod for name, pod in cluster.pods.items() if name.endswith("worker"))
    cluster.now += NODE_SECONDS
    before = worker["status"]
    worker["status"] = {
        "phase": "Pending",
        "conditions": [{**NO_ROOM, "lastTransitionTime": format_time(cluster.now)}],
    }
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)["status"]) == ("Starting", "False")
    assert condition(cluster, "Ready")["reason"] == "Unschedulable"
    worker["status"] = before
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)["status"]) == ("Running", "False")


def test_pod_without_a_node_hides_no_crash() -> None:
    """A pod that fails is replaced, and its replacement may wait for a node. The crash is the cause to remove."""
    cluster, operator = started_job()
    cluster.start_pods()
    crashed = {"name": "worker", "state": {"terminated": {"exitCode": 1}}}
    cluster.pods[WORKER]["status"] = {"phase": "Failed", "containerStatuses": [crashed]}
    operator.settle()
    assert stalled(cluster)["reason"] == "CrashLoop"
    placed = {**NO_ROOM, "lastTransitionTime": format_time(cluster.now)}
    cluster.pods[WORKER]["status"] = {"phase": "Pending", "conditions": [placed]}
    operator.settle()
    assert (stalled(cluster)["status"], stalled(cluster)["reason"]) == ("True", "CrashLoop")


def test_pod_without_a_node_hides_nothing_that_a_user_has_to_fix() -> None:
    """A node may still come, but the image of another pod will not. The head's pod is the first in every list."""
    cluster, operator = job_without_a_node()
    cluster.pods[HEAD]["status"] = cluster.pods[WORKER]["status"]
    waiting = {"reason": "ImagePullBackOff"}
    unpulled = [{"name": "worker", "image": "trainer:typo", "state": {"waiting": waiting}}]
    cluster.pods[WORKER]["status"] = {"phase": "Pending", "containerStatuses": unpulled}
    operator.settle()
    assert (stalled(cluster)["status"], stalled(cluster)["reason"]) == ("True", "ImagePullFailed")


def test_pod_without_a_node_hides_no_crash_of_another_pod() -> None:
    cluster, operator = job_without_a_node()
    crashed = {"name": "head", "state": {"terminated": {"exitCode": 1}}}
    cluster.pods[HEAD]["status"] = {"phase": "Failed", "containerStatuses": [crashed]}
    operator.settle()
    assert (stalled(cluster)["status"], stalled(cluster)["reason"]) == ("True", "CrashLoop")


def test_pod_without_a_node_hides_no_volume_that_another_pod_waits_for() -> None:
    cluster, operator = waiting_job(**PLACED, PodReadyToStartContainers=("False", ""))
    cluster.now += PENDING_SECONDS
    placed = {**NO_ROOM, "lastTransitionTime": format_time(cluster.now)}
    cluster.pods[HEAD]["status"] = {"phase": "Pending", "conditions": [placed]}
    operator.settle()
    assert (stalled(cluster)["status"], stalled(cluster)["reason"]) == ("True", "ContainerRefused")


@pytest.mark.parametrize(
    "conditions",
    [
        {"PodScheduled": ("False", "SchedulingGated")},
        {"PodScheduled": ("False", "")},
        {**PLACED, "PodReadyToStartContainers": ("False", "")},
    ],
)
def test_decision_takes_no_more_than_its_share_of_time_for_each_pod_and_warning(
    conditions: dict[str, tuple[str, str]],
) -> None:
    """Any user may create pods with a job's label, and Events about them. The operator decides on its event loop."""
    cluster, _ = waiting_job(**conditions)
    body = cluster.pods[WORKER]
    pods = [
        {**body, "metadata": {**body["metadata"], "name": f"pod-{number}", "uid": f"uid-{number}"}}
        for number in range(KINDS.kept["Pod"])
    ]
    about = [each["metadata"]["name"] for each in pods]
    warnings = [ClusterWarning("Pod", name, "FailedMount", "timed out") for name in about]
    ray_cluster = ClusterWarning("RayCluster", "claims-triage-a1", "FailedToCreateWorkerPod", "a timeout")
    warnings += [ray_cluster] * (KEPT_IN_NAMESPACE - len(warnings))

    def seconds(part: int) -> float:
        """Of the thread, for every `part`-th pod and warning, without what other processes of the machine cost."""
        seen = replace(cluster.observe(), pods=tuple(pods[::part]), warnings=tuple(warnings[::part]))
        durations = []
        for _ in range(5):
            before = time.thread_time()
            decide(seen, cluster.now, SETTINGS)
            durations.append(time.thread_time() - before)
        return min(durations)

    assert seconds(1) < 8 * seconds(4), "four times as many take four times as long, and 16 times if compared in pairs"


@pytest.mark.parametrize("reason", ["Schedulable", "Undetermined"])
def test_gang_that_waits_as_a_whole_does_not_lack_a_scheduler(reason: str) -> None:
    """Volcano has nodes for it once other pods have ended."""
    cluster, operator = waiting_job(PodScheduled=("False", reason))
    cluster.now += PENDING_SECONDS
    operator.settle()
    assert (stalled(cluster)["status"], stalled(cluster)["reason"]) == ("True", "Unschedulable")
    assert f"pod {WORKER}: waits for the rest of its gang after 300 s ({reason})" in stalled(cluster)["message"]
    assert stalled(cluster)["message"].endswith(fixes.GANG)


@pytest.mark.parametrize("reason", ["Schedulable", "Undetermined"])
def test_rest_of_a_gang_waits_for_the_pod_without_a_node(reason: str) -> None:
    """From the fifth minute to the tenth, the head seemed to wait for a scheduler that does not run."""
    cluster, operator = job_without_a_node()
    head = cluster.pods[HEAD]
    head["metadata"]["creationTimestamp"] = format_time(cluster.now)
    head["status"] = {"phase": "Pending", "conditions": [{**NO_ROOM, "reason": reason, "message": "can be assigned"}]}
    for seconds, expected in ((PENDING_SECONDS + 1, "False"), (NODE_SECONDS - PENDING_SECONDS, "True")):
        cluster.now += seconds
        operator.settle()
        assert f"pod {WORKER}: 0/3 nodes: no GPU" in condition(cluster, "Ready")["message"]
        assert stalled(cluster)["status"] == expected
