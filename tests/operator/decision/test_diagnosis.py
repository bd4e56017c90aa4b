"""What keeps pods from running is reported with its reason and object, and stalls the job where a user has to act."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tensafe_api.fixes import Fix
from tensafe_api.reasons import Phase, Reason
from tensafe_api.timestamps import format_time
from tensafe_operator.decision.diagnosis import (
    KUBERAY_SECONDS,
    NODE_SECONDS,
    PENDING_SECONDS,
    find_blocker,
    starting_state,
)
from tensafe_operator.decision.observation import ClusterWarning, Observed
from tensafe_operator.decision.parsing import count_ready_workers
from tests.support.blocked_pods import UNSCHEDULABLE, observe, pod, waiting_pod
from tests.support.fake_cluster import (
    FakeCluster,
    FakeOperator,
    condition,
    running_job,
    start_next_attempt,
    started_job,
)
from tests.support.fakes import statuses

RAY_JOB, CLUSTER = "claims-triage-a1", "claims-triage-a1-x"
HEAD, WORKER = f"{RAY_JOB}-head", f"{RAY_JOB}-worker"
UNKNOWN = 'RayJob in version "v1" cannot be handled as a RayJob: strict decoding error: unknown field "authOptions"'
CONFIG = "CreateContainerConfigError"


def warned(kind: str, reason: str, message: str) -> Observed:
    return observe(warnings=(ClusterWarning(kind, "x-1", reason, message),))


def crash_loop() -> dict[str, Any]:
    found = waiting_pod("CrashLoopBackOff")
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    found["status"]["containerStatuses"][0]["lastState"] = last
    return found


def stalled(cluster: FakeCluster) -> tuple[str, str]:
    found = condition(cluster, "Stalled")
    return found["status"], found["reason"]


@pytest.mark.parametrize(
    ("observed", "reason", "text"),
    [
        (observe(kuberay=False), Reason.KUBERAY_MISSING, "ray.io/v1"),
        (observe(waiting_pod("ImagePullBackOff", "not found")), Reason.IMAGE_PULL_FAILED, "registry/none:1: ImagePull"),
        (observe(waiting_pod("ErrImageNeverPull")), Reason.IMAGE_PULL_FAILED, "pod w-1"),
        (observe(waiting_pod("ImageInspectError", "short name")), Reason.IMAGE_PULL_FAILED, "short name"),
        (observe(waiting_pod("SignatureValidationFailed")), Reason.IMAGE_PULL_FAILED, "pod w-1"),
        (observe(crash_loop()), Reason.CRASH_LOOP, "exit code 137 (OOMKilled)"),
        (observe(waiting_pod("CreateContainerError", "no CDI devices")), Reason.CONTAINER_REFUSED, "no CDI devices"),
        (observe(waiting_pod("ReasonOfALaterRelease")), Reason.CONTAINER_REFUSED, "pod w-1: container ray: ReasonOfAL"),
        (observe(waiting_pod(CONFIG, 'secret "hub" not found')), Reason.SECRET_MISSING, "hub"),
        (observe(waiting_pod(CONFIG, 'configmap "tuning" not found')), Reason.SECRET_MISSING, "tuning"),
        (observe(waiting_pod(CONFIG, "couldn't find key id in Secret clinic/hub")), Reason.SECRET_MISSING, "key id"),
        (observe(waiting_pod(CONFIG, "container has runAsNonRoot")), Reason.ROOT_IMAGE, "runAsNonRoot"),
        (observe(waiting_pod(CONFIG, "failed to prepare subPath")), Reason.CONTAINER_REFUSED, "subPath"),
        (observe(pod(conditions=[UNSCHEDULABLE])), Reason.UNSCHEDULABLE, "no GPU"),
        (warned("Pod", "FailedMount", 'secret "s3-keys" not found'), Reason.SECRET_MISSING, "s3-keys"),
        (warned("Pod", "FailedMount", "references non-existent secret key: id"), Reason.SECRET_MISSING, "key: id"),
        (warned("RayCluster", "FailedToCreateHeadPod", "exceeded quota: few"), Reason.QUOTA_EXCEEDED, "few"),
        (warned("RayCluster", "FailedToCreateWorkerPod", "failed quota: q: limits"), Reason.QUOTA_EXCEEDED, "limits"),
        (warned("RayJob", "Forbidden", "not allowed"), Reason.FORBIDDEN, "RayJob x-1: not allowed"),
        (warned("RayJob", "Forbidden", UNKNOWN), Reason.UNKNOWN_FIELD, "authOptions"),
        (warned("RayJob", "NameTaken", "belongs to another"), Reason.NAME_TAKEN, "RayJob x-1"),
    ],
    ids=lambda value: value.value if isinstance(value, Reason) else "",
)
def test_blocker_names_its_reason_and_object(observed: Observed, reason: Reason, text: str) -> None:
    found = find_blocker(observed)
    assert found is not None
    assert found.reason is reason
    assert text in found.what


@pytest.mark.parametrize(
    "observed",
    [
        *(observe(waiting_pod(reason)) for reason in ("ContainerCreating", "PodInitializing")),
        observe(pod(containerStatuses=[{"name": "ray", "state": {"waiting": {}}}])),
        observe(pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])),
        warned("Pod", "FailedMount", "driver name efs.csi.aws.com not found in the list of CSI drivers"),
        warned("RayJob", "FailedToCreateRayCluster", 'rayclusters.ray.io "x-1-abcde" already exists'),
    ],
)
def test_normal_start_is_not_blocked(observed: Observed) -> None:
    assert find_blocker(observed) is None


def test_only_ready_workers_are_counted() -> None:
    running = pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    assert count_ready_workers([running, pod(phase="Pending")]) == 1


def test_output_of_a_hook_is_not_copied() -> None:
    found = find_blocker(observe(waiting_pod("PostStartHookError", "Exec lifecycle hook failed: a diagnosis")))
    assert found is not None and found.reason is Reason.CONTAINER_REFUSED and "diagnosis" not in found.what


def test_message_is_one_short_line_without_control_characters() -> None:
    """A user may give a pod the labels of a job, and its image any text."""
    image = "none\n\x1b[31m\u202ekubectl delete tsj"
    waiting = {"waiting": {"reason": "InvalidImageName", "message": 5000 * "!"}}
    observed = observe(pod(containerStatuses=[{"name": "ray", "image": image, "state": waiting}]))
    state = starting_state(observed, Phase.STARTING)
    assert state.message.startswith("pod w-1: none \ufffd[31mkubectl delete tsj: InvalidImageName: ")
    assert len(state.message) < 1000 and state.message.endswith(Reason.IMAGE_PULL_FAILED.fix)


def starting_job(**changes: Any) -> tuple[FakeCluster, FakeOperator]:
    """A job with a head that is ready and a worker that has just been created."""
    cluster, operator = started_job(spec__cluster__workers=1, **changes)
    cluster.start_pods()
    cluster.ray_jobs[RAY_JOB]["status"] = {"jobDeploymentStatus": "Initializing", "rayClusterName": CLUSTER}
    cluster.pods[WORKER]["status"] = {"phase": "Pending", "conditions": []}
    return cluster, operator


def placed(cluster: FakeCluster, status: str, **more: str) -> dict[str, Any]:
    """The condition PodScheduled of a pod, since now."""
    return {"type": "PodScheduled", "status": status, "lastTransitionTime": format_time(cluster.now), **more}


def test_blocker_is_in_the_status_as_fields_until_it_is_removed() -> None:
    cluster, operator = starting_job()
    waiting = {"waiting": {"reason": "CreateContainerError", "message": "context deadline exceeded"}}
    containers = [{"name": "ray-worker", "state": waiting}]
    ready = cluster.pods[HEAD]["status"]
    cluster.pods[WORKER]["status"] = {"phase": "Pending", "containerStatuses": containers}
    operator.settle()
    blocker = cluster.status["blocker"]
    assert (blocker["reason"], blocker["object"]) == ("ContainerRefused", f"pod {WORKER}")
    assert "context deadline exceeded" in blocker["message"] and "fix" not in blocker
    assert stalled(cluster) == ("True", "ContainerRefused")
    cluster.pods[WORKER]["status"] = ready
    operator.settle()
    assert (stalled(cluster)[0], cluster.status.get("blocker")) == ("False", None)


def test_worker_of_a_running_job_whose_container_is_not_created_stalls_it() -> None:
    cluster, operator = running_job()
    containers = [{"name": "ray", "state": {"waiting": {"reason": "CreateContainerError"}}}]
    cluster.pods[WORKER]["status"] = {"phase": "Pending", "containerStatuses": containers}
    operator.settle()
    assert stalled(cluster) == ("True", "ContainerRefused")


# Warnings that are over


@pytest.mark.parametrize(("phase", "found"), [("Pending", True), ("Running", False)])
def test_warning_about_a_pod_counts_until_the_pod_has_started(phase: str, found: bool) -> None:
    warning = ClusterWarning("Pod", "w-1", "FailedMount", 'secret "s3-keys" not found')
    assert (find_blocker(observe(pod(phase=phase), warnings=(warning,))) is not None) == found


@pytest.mark.parametrize(("kind", "name"), [("RayJob", RAY_JOB), ("RayCluster", CLUSTER)])
def test_refusal_is_over_once_kuberay_has_created_a_pod_after_it(kind: str, name: str) -> None:
    cluster, _ = starting_job()
    for since, reason in ((-1, None), (0, Reason.FORBIDDEN), (1, Reason.FORBIDDEN)):
        refused = ClusterWarning(kind, name, "FailedToCreateWorkerPod", "not allowed", cluster.now + since)
        found = find_blocker(replace(cluster.observe(), warnings=(refused,)))
        assert (found and found.reason) is reason
    cluster.pods.clear()
    found = find_blocker(replace(cluster.observe(), warnings=(replace(refused, time=cluster.now - 1),)))
    assert found is not None, "no pod shows that it is over"


@pytest.mark.parametrize(("kind", "name"), [("RayJob", RAY_JOB), ("RayCluster", CLUSTER)])
def test_warning_of_an_earlier_attempt_does_not_block_the_next_one(kind: str, name: str) -> None:
    """The RayJob of an attempt is kept for its logs, and with it the last warning about it."""
    cluster, operator = running_job()
    start_next_attempt(cluster, operator)
    refused = ClusterWarning(kind, name, "FailedToCreateHeadPod", "not allowed", cluster.now)
    assert find_blocker(replace(cluster.observe(), warnings=(refused,))) is None


# KubeRay


def initializing(cluster: FakeCluster) -> None:
    cluster.ray_jobs[RAY_JOB]["status"] = statuses.initializing(CLUSTER, format_time(cluster.now))


def unsubmitted(cluster: FakeCluster) -> None:
    cluster.start_pods()
    for each in cluster.pods.values():
        each["status"]["conditions"][0]["lastTransitionTime"] = format_time(cluster.now)
    cluster.ray_jobs[RAY_JOB]["status"] = statuses.running(CLUSTER)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(lambda cluster: None, "KubeRayMissing"), (initializing, "KubeRayMissing"), (unsubmitted, "NotSubmitted")],
    ids=["no-status", "no-pods", "unsubmitted"],
)
def test_ray_job_with_which_kuberay_does_nothing_stalls_the_job_until_it_does(
    change: Callable[[FakeCluster], None], reason: str
) -> None:
    cluster, operator = started_job()
    change(cluster)
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")
    assert operator.wake == cluster.now + KUBERAY_SECONDS
    cluster.now += KUBERAY_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", reason)
    assert cluster.status["blocker"]["object"] == f"RayJob {RAY_JOB}"
    cluster.start_pods()
    cluster.ray_jobs[RAY_JOB]["status"] = {**statuses.running(CLUSTER), "jobStatus": "PENDING"}
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)[0]) == ("Starting", "False")


def test_pods_that_fail_and_are_not_replaced_stall_the_job() -> None:
    cluster, operator = started_job()
    cluster.start_pods()
    initializing(cluster)
    cluster.now += 3600
    ended = {"type": "Ready", "status": "False", "lastTransitionTime": format_time(cluster.now)}
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    for each in cluster.pods.values():
        each["status"] = {"phase": "Failed", "reason": "Terminated", "conditions": [ended, disrupted]}
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked"), "KubeRay has its time to replace them"
    cluster.now += KUBERAY_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", "KubeRayMissing")


def test_ray_job_that_a_queue_releases_again_has_not_been_ignored() -> None:
    cluster, operator = running_job(spec__cluster__queueName="team")
    cluster.evict()
    operator.settle()
    cluster.now += 10 * KUBERAY_SECONDS
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)[0]) == ("Queued", "False")
    cluster.readmit()
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)[0]) == ("Starting", "False")


def test_time_in_a_queue_is_not_kuberays() -> None:
    cluster, operator = started_job(spec__cluster__queueName="team")
    cluster.now += 10 * KUBERAY_SECONDS
    cluster.readmit()
    operator.settle()
    assert stalled(cluster)[0] == "False"
    cluster.now += KUBERAY_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", "KubeRayMissing")


def test_next_attempt_names_the_ray_job_that_a_finalizer_holds() -> None:
    cluster, operator = running_job()
    cluster.ray_jobs[RAY_JOB]["metadata"]["deletionTimestamp"] = format_time(cluster.now)
    cluster.job["status"]["attempts"][0] |= {"endTime": format_time(cluster.now), "reason": "Interrupted"}
    cluster.pods.clear()
    operator.settle()
    assert stalled(cluster)[0] == "False"
    cluster.now += KUBERAY_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", "KubeRayMissing")
    assert cluster.status["blocker"]["fix"] == Fix.FINALIZER
    del cluster.ray_jobs[RAY_JOB]
    operator.settle()
    assert cluster.created[-1] == "claims-triage-a2"


def test_suspension_that_kuberay_does_not_finish_is_explained_and_is_no_failure() -> None:
    cluster, operator = started_job(**{"spec.retry": {"maxAttempts": 1}})
    cluster.suspend(True)
    cluster.ray_jobs[RAY_JOB]["metadata"]["deletionTimestamp"] = format_time(cluster.now)
    operator.settle()
    assert condition(cluster, "Running")["reason"] == "Suspending"
    cluster.now += KUBERAY_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", "KubeRayMissing")
    del cluster.ray_jobs[RAY_JOB]
    operator.settle()
    assert (cluster.status["phase"], cluster.status["attempts"][0]["reason"]) == ("Suspended", "Interrupted")


# Pods that wait


def test_pod_whose_volumes_are_not_ready_is_named_with_its_last_warning() -> None:
    cluster, operator = starting_job()
    cluster.pods[WORKER]["status"]["conditions"] = [
        placed(cluster, "True"),
        {"type": "PodReadyToStartContainers", "status": "False"},
    ]
    operator.settle()
    assert (stalled(cluster)[0], operator.wake) == ("False", cluster.now + PENDING_SECONDS)
    cluster.now += PENDING_SECONDS
    held = ClusterWarning("Pod", WORKER, "FailedAttachVolume", "Multi-Attach error for volume: used by pod notebook")
    placed_since = ClusterWarning("Pod", WORKER, "FailedScheduling", "0/3 nodes: no GPU")
    operator.reconcile(replace(cluster.observe(), warnings=(held, placed_since)))
    assert stalled(cluster) == ("True", "ContainerRefused")
    assert cluster.status["blocker"]["object"] == f"pod {WORKER}"
    assert "Multi-Attach error" in cluster.status["blocker"]["message"]


def test_pull_of_a_large_image_stalls_no_job() -> None:
    cluster, operator = starting_job()
    cluster.pods[WORKER]["status"]["conditions"] = [
        placed(cluster, "True"),
        {"type": "PodReadyToStartContainers", "status": "True"},
    ]
    cluster.now += 10 * PENDING_SECONDS
    operator.settle()
    assert stalled(cluster)[0] == "False"


@pytest.mark.parametrize("reason", ["", "SchedulingGated", "SchedulerError", "Undetermined"])
def test_pod_that_waits_for_its_scheduler_gang_or_gates_is_named(reason: str) -> None:
    cluster, operator = starting_job()
    if reason:
        cluster.pods[WORKER]["status"]["conditions"] = [placed(cluster, "False", reason=reason)]
    operator.settle()
    assert stalled(cluster)[0] == "False"
    cluster.now += PENDING_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", "Unschedulable")
    blocker = cluster.status["blocker"]
    assert (blocker["object"], blocker["fix"]) == (f"pod {WORKER}", Fix.SCHEDULER) and reason in blocker["message"]


def job_without_a_node() -> tuple[FakeCluster, FakeOperator]:
    """A job for whose worker the scheduler has just found no node."""
    cluster, operator = starting_job()
    no_room = placed(cluster, "False", reason="Unschedulable", message="0/3 nodes: no GPU")
    cluster.pods[WORKER]["status"]["conditions"] = [no_room]
    operator.settle()
    return cluster, operator


def test_job_reports_at_once_that_no_node_fits_and_is_stalled_where_none_comes() -> None:
    """An autoscaler may add one. Argo CD would show the job as Degraded for as long as the machine starts."""
    cluster, operator = job_without_a_node()
    for kind in ("Ready", "Reconciling"):
        assert condition(cluster, kind)["reason"] == "Unschedulable"
    assert cluster.status["blocker"]["object"] == f"pod {WORKER}"
    assert (stalled(cluster)[0], operator.wake) == ("False", cluster.now + NODE_SECONDS)
    cluster.now += NODE_SECONDS - 1
    operator.settle()
    assert stalled(cluster)[0] == "False"
    cluster.now += 1
    operator.settle()
    assert stalled(cluster) == ("True", "Unschedulable")
    cluster.pods[WORKER]["status"] = {"phase": "Running"}
    operator.settle()
    assert (stalled(cluster)[0], condition(cluster, "Ready")["reason"]) == ("False", "Starting")


def test_lost_worker_of_a_running_job_may_wait_for_a_node() -> None:
    cluster, operator = running_job()
    before = cluster.pods[WORKER]["status"]
    no_room = placed(cluster, "False", reason="Unschedulable", message="0/3 nodes: no GPU")
    cluster.pods[WORKER]["status"] = {"phase": "Pending", "conditions": [no_room]}
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)[0]) == ("Starting", "False")
    assert condition(cluster, "Ready")["reason"] == "Unschedulable"
    cluster.pods[WORKER]["status"] = before
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)[0]) == ("Running", "False")


IMAGE = {"phase": "Pending", "containerStatuses": [{"name": "a", "state": {"waiting": {"reason": "ErrImagePull"}}}]}
CRASH = {"phase": "Failed", "containerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 1}}}]}


@pytest.mark.parametrize(("status", "reason"), [(IMAGE, "ImagePullFailed"), (CRASH, "CrashLoop")])
def test_pod_without_a_node_hides_nothing_that_a_user_has_to_fix(status: dict[str, Any], reason: str) -> None:
    cluster, operator = job_without_a_node()
    cluster.pods[HEAD]["status"] = status
    operator.settle()
    assert stalled(cluster) == ("True", reason)


def test_rest_of_a_gang_waits_for_the_pod_without_a_node() -> None:
    """Volcano reports a pod that fits as Schedulable while another one of its gang has no node."""
    cluster, operator = job_without_a_node()
    fits = placed(cluster, "False", reason="Schedulable", message="can be assigned")
    cluster.pods[HEAD]["status"] = {"phase": "Pending", "conditions": [fits]}
    for seconds, expected in ((PENDING_SECONDS + 1, "False"), (NODE_SECONDS - PENDING_SECONDS, "True")):
        cluster.now += seconds
        operator.settle()
        assert (cluster.status["blocker"]["object"], stalled(cluster)[0]) == (f"pod {WORKER}", expected)
