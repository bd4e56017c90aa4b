"""A job whose RayJob KubeRay ignores: its kind is installed, but KubeRay's operator does not act."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.platform.fakes import statuses
from e2e.platform.fixtures.fake_cluster import FakeCluster, FakeOperator, condition, running_job, started_job
from tensafe_api import fixes
from tensafe_api.timestamps import format_time
from tensafe_operator.plan.ignored import IGNORED_SECONDS

NAME, CLUSTER = "claims-triage-a1", "claims-triage-a1-x"


def stalled(cluster: FakeCluster) -> tuple[str, str]:
    found = condition(cluster, "Stalled")
    return found["status"], found["reason"]


def hold(cluster: FakeCluster, name: str) -> None:
    """Request the deletion of a RayJob, whose finalizer stays."""
    cluster.ray_jobs[name]["metadata"]["deletionTimestamp"] = format_time(cluster.now)


def test_new_ray_job_without_a_status_stalls_the_job_until_kuberay_answers() -> None:
    cluster, operator = started_job()
    end = cluster.now + IGNORED_SECONDS
    assert (stalled(cluster), operator.wake) == (("False", "NotBlocked"), end)
    cluster.now = end
    operator.settle()
    assert stalled(cluster) == ("True", "KubeRayMissing")
    assert "RayJob claims-triage-a1 has no status after 120 s" in condition(cluster, "Stalled")["message"]
    cluster.now += 3600
    operator.settle()
    assert stalled(cluster) == ("True", "KubeRayMissing"), "the report stays"
    cluster.ray_jobs["claims-triage-a1"]["status"] = statuses.initializing(CLUSTER, format_time(cluster.now))
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")
    assert len(cluster.status["attempts"]) == 1


def without_pods(cluster: FakeCluster) -> None:
    """KubeRay has accepted the RayJob and created nothing."""
    cluster.ray_jobs[NAME]["status"] = statuses.initializing(CLUSTER, format_time(cluster.now))


def admitted(cluster: FakeCluster) -> None:
    """Kueue has admitted the RayJob."""
    cluster.ray_jobs[NAME]["status"] = {"jobDeploymentStatus": "Suspended"}


def unsubmitted(cluster: FakeCluster) -> None:
    """KubeRay has seen that all pods are ready."""
    cluster.start_pods()
    cluster.ray_jobs[NAME]["status"] = statuses.running(CLUSTER)


@pytest.mark.parametrize(
    ("change", "reason", "text"),
    [
        (without_pods, "KubeRayMissing", f"RayJob {NAME} has no pods after 120 s"),
        (admitted, "KubeRayMissing", f"RayJob {NAME} is still Suspended after 120 s"),
        (unsubmitted, "NotSubmitted", f"RayJob {NAME} is not submitted after 120 s, because KubeRay cannot reach port"),
    ],
)
def test_ray_job_that_stays_in_a_state_stalls_the_job_until_kuberay_continues(
    change: Callable[[FakeCluster], None], reason: str, text: str
) -> None:
    cluster, operator = started_job()
    change(cluster)
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")
    assert operator.wake == cluster.now + IGNORED_SECONDS
    cluster.now += IGNORED_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", reason)
    assert text in condition(cluster, "Stalled")["message"]
    cluster.start_pods()
    cluster.ray_jobs[NAME]["status"] = {**statuses.running(CLUSTER), "jobStatus": "PENDING"}
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)) == ("Starting", ("False", "NotBlocked"))


@pytest.mark.parametrize("change", [admitted, unsubmitted])
def test_pods_that_start_or_stop_are_no_wait_for_kuberay(change: Callable[[FakeCluster], None]) -> None:
    """The kubelet has to act next: pods of an evicted RayJob terminate, or the head is not ready."""
    cluster, operator = started_job()
    cluster.start_pods()
    change(cluster)
    for pod in cluster.pods.values():
        pod["metadata"]["deletionTimestamp"] = format_time(cluster.now + 240)
        pod["status"]["conditions"] = []
    operator.settle()
    cluster.now += IGNORED_SECONDS
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")


@pytest.mark.parametrize("lost", [slice(0, 1), slice(1, 2), slice(None)], ids=["head", "worker", "all"])
def test_pod_whose_node_does_not_answer_is_named_with_what_removes_it(lost: slice) -> None:
    """Such a pod is being deleted for ever, and KubeRay creates no other."""
    cluster, operator = started_job()
    cluster.start_pods()
    unsubmitted(cluster)
    names = list(cluster.pods)[lost]
    for name in names:
        cluster.pods[name]["metadata"]["deletionTimestamp"] = format_time(cluster.now + 30)
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")
    cluster.now += 30 + IGNORED_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", "PodsLeft")
    message = condition(cluster, "Stalled")["message"]
    assert f"pod {names[0]} is still being deleted 120 s after the end of its grace period" in message
    assert message.endswith(fixes.NODE_LOST)
    cluster.pods.clear()
    operator.settle()
    cluster.start_pods()
    cluster.ray_jobs[NAME]["status"] = {**statuses.running(CLUSTER), "jobStatus": "PENDING"}
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)) == ("Starting", ("False", "NotBlocked"))


@pytest.mark.parametrize("deleted", [False, True], ids=["failed", "failed-and-deleted"])
def test_pods_that_have_just_failed_show_that_kuberay_works(deleted: bool) -> None:
    """KubeRay deletes each of them, and creates another one."""
    cluster, operator = started_job()
    without_pods(cluster)
    operator.settle()
    cluster.now += 3600
    cluster.start_pods()
    now = format_time(cluster.now)
    for pod in cluster.pods.values():
        pod["metadata"] |= {"creationTimestamp": now, **({"deletionTimestamp": now} if deleted else {})}
        pod["status"] = {"phase": "Failed", "reason": "Preempting"}
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")
    assert operator.wake == cluster.now + IGNORED_SECONDS


def test_pods_that_have_failed_and_are_not_replaced_stall_the_job() -> None:
    cluster, operator = started_job()
    cluster.start_pods()
    without_pods(cluster)
    operator.settle()
    cluster.now += 3600
    for pod in cluster.pods.values():
        ended = {"type": "Ready", "status": "False", "lastTransitionTime": format_time(cluster.now)}
        pod["metadata"]["creationTimestamp"] = format_time(cluster.now - 3600)
        pod["status"] = {"phase": "Failed", "reason": "Preempting", "conditions": [ended]}
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")
    cluster.now += IGNORED_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", "KubeRayMissing")
    assert f"RayJob {NAME} has only pods that have ended after 120 s" in condition(cluster, "Stalled")["message"]


def test_next_attempt_names_the_ray_job_that_has_ended_and_still_has_its_pods() -> None:
    cluster, operator = running_job()
    cluster.end_ray_job("FAILED")
    for pod in cluster.pods.values():
        del pod["metadata"]["deletionTimestamp"]
    operator.settle()
    cluster.now += IGNORED_SECONDS - 1
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")
    cluster.now += 1
    operator.settle()
    assert stalled(cluster) == ("True", "KubeRayMissing")
    assert f"RayJob {NAME} has ended and still has its pods after 120 s" in condition(cluster, "Stalled")["message"]
    cluster.pods.clear()
    operator.settle()
    assert cluster.created[-1] == "claims-triage-a2"


def test_ray_job_in_a_queue_is_not_ignored() -> None:
    cluster, operator = started_job(spec__cluster__queueName="team")
    cluster.now += IGNORED_SECONDS
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)) == ("Queued", ("False", "NotBlocked"))


def test_next_attempt_names_the_ray_job_that_a_finalizer_holds() -> None:
    cluster, operator = running_job()
    hold(cluster, "claims-triage-a1")
    cluster.job["status"]["attempts"][0]["endTime"] = format_time(cluster.now)
    cluster.job["status"]["attempts"][0]["reason"] = "Interrupted"
    cluster.pods.clear()
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")
    cluster.now += IGNORED_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", "KubeRayMissing")
    message = condition(cluster, "Stalled")["message"]
    assert "claims-triage-a1 keeps a finalizer" in message
    assert "or because the finalizer is that of another component" in message
    assert message.endswith(fixes.FINALIZER)
    del cluster.ray_jobs["claims-triage-a1"]
    operator.settle()
    assert cluster.created[-1] == "claims-triage-a2"


def test_suspension_that_kuberay_does_not_finish_is_explained_and_is_no_failure() -> None:
    cluster, operator = started_job(**{"spec.retry": {"maxAttempts": 1}})
    cluster.suspend(True)
    hold(cluster, "claims-triage-a1")
    operator.settle()
    assert condition(cluster, "Running")["reason"] == "Suspending"
    cluster.now += IGNORED_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", "Suspending")
    assert "KubeRay's operator does not run" in condition(cluster, "Stalled")["message"]
    del cluster.ray_jobs["claims-triage-a1"]
    operator.settle()
    assert (cluster.status["phase"], cluster.status["attempts"][0]["reason"]) == ("Suspended", "Interrupted")


def test_clocks_that_differ_stall_no_job_that_starts() -> None:
    """The API server's clock is an hour behind the operator's."""
    cluster = FakeCluster.with_job()
    operator = FakeOperator(cluster)
    operator.settle()
    cluster.ray_jobs["claims-triage-a1"]["metadata"]["creationTimestamp"] = format_time(cluster.now - 3600)
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")
