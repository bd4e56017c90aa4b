"""Each blocker is reported by its reason, with the name of the object."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.platform.fixtures.blocked_pods import UNSCHEDULABLE, observe, pod, waiting_pod
from e2e.platform.fixtures.fake_cluster import condition, running_job, started_job
from tensafe_api.reasons import Phase, Reason
from tensafe_api.timestamps import format_time
from tensafe_operator.plan.blockers import count_ready_workers, find_blocker, starting_state
from tensafe_operator.plan.observed import ClusterWarning, Observed


def crash_loop(exit_code: int, reason: str) -> dict[str, Any]:
    found = waiting_pod("CrashLoopBackOff")
    last = {"terminated": {"exitCode": exit_code, "reason": reason}}
    found["status"]["containerStatuses"][0]["lastState"] = last
    return found


def unknown_field(path: str) -> ClusterWarning:
    text = f'RayJob in version "v1" cannot be handled as a RayJob: strict decoding error: unknown field "{path}"'
    return ClusterWarning("RayJob", "claims-triage-a1", Reason.FORBIDDEN, text)


_TEMPLATE = "spec.rayClusterSpec.workerGroupSpecs[0].template.spec"


_FITS = {**UNSCHEDULABLE, "reason": "Schedulable", "message": "Pod clinic/w-1 can possibly be assigned to n-1"}
"""How Volcano reports a pod that fits on a node and waits for the others of its group."""


_PODS_REFUSED = "FailedToCreateHeadPod"


_MISSING_SECRET = {"reason": "CreateContainerConfigError", "message": 'secret "later" not found'}


@pytest.mark.parametrize(
    ("observed", "reason", "text"),
    [
        (observe(kuberay=False), Reason.KUBERAY_MISSING, "KubeRay"),
        (observe(kuberay=False, guarded=False), Reason.GUARD_MISSING, "admission policies"),
        (observe(warnings=(unknown_field("authOptions"),)), Reason.KUBERAY_MISSING, "authOptions, because KubeRay is"),
        (observe(warnings=(unknown_field(f"{_TEMPLATE}.affinity.podAfinity"),)), Reason.UNKNOWN_FIELD, "podAfinity"),
        (
            observe(warnings=(unknown_field(f"{_TEMPLATE}.topologySpreadConstraints[0].minDomain"),)),
            Reason.UNKNOWN_FIELD,
            "minDomain",
        ),
        (observe(waiting_pod("ImagePullBackOff")), Reason.IMAGE_PULL_FAILED, "registry/none:1"),
        (observe(waiting_pod("ErrImageNeverPull")), Reason.IMAGE_PULL_FAILED, "pod w-1"),
        (
            observe(waiting_pod("ImageInspectError", "short name mode is enforcing")),
            Reason.IMAGE_PULL_FAILED,
            "registry/none:1: ImageInspectError: short name mode is enforcing",
        ),
        (observe(waiting_pod("RegistryUnavailable")), Reason.IMAGE_PULL_FAILED, "registry/none:1"),
        (observe(waiting_pod("CrashLoopBackOff")), Reason.CRASH_LOOP, "container ray"),
        (observe(crash_loop(137, "OOMKilled")), Reason.CRASH_LOOP, "repeatedly, last with exit code 137 (OOMKilled)"),
        (
            observe(waiting_pod("CreateContainerError", "failed to inject CDI devices")),
            Reason.CONTAINER_REFUSED,
            "pod w-1: container ray: CreateContainerError: failed to inject CDI devices",
        ),
        (observe(waiting_pod("CreateContainerConfigError", 'secret "hub" not found')), Reason.SECRET_MISSING, "hub"),
        (
            observe(waiting_pod("CreateContainerConfigError", 'configmap "tuning" not found')),
            Reason.SECRET_MISSING,
            "tuning",
        ),
        (
            observe(waiting_pod("CreateContainerConfigError", "couldn't find key token in Secret clinic/hub")),
            Reason.SECRET_MISSING,
            "key token",
        ),
        (
            observe(waiting_pod("CreateContainerConfigError", "couldn't find key batch in ConfigMap clinic/tuning")),
            Reason.SECRET_MISSING,
            "key batch",
        ),
        (
            observe(waiting_pod("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")),
            Reason.ROOT_IMAGE,
            "will run as root",
        ),
        (
            observe(
                waiting_pod(
                    "CreateContainerConfigError", "container has runAsNonRoot and image has non-numeric user (ray)"
                )
            ),
            Reason.ROOT_IMAGE,
            "(ray)",
        ),
        (
            observe(waiting_pod("CreateContainerConfigError", "container's runAsUser breaks non-root policy")),
            Reason.ROOT_IMAGE,
            "runAsUser",
        ),
        (
            observe(waiting_pod("CreateContainerConfigError", 'failed to prepare subPath for volumeMount "data"')),
            Reason.CONTAINER_REFUSED,
            "subPath",
        ),
        (observe(pod(conditions=[UNSCHEDULABLE])), Reason.UNSCHEDULABLE, "no GPU"),
        (observe(pod(conditions=[_FITS]), pod(conditions=[UNSCHEDULABLE])), Reason.UNSCHEDULABLE, "no GPU"),
        (
            observe(warnings=(ClusterWarning("Pod", "w-1", "FailedMount", 'secret "s3-keys" not found'),)),
            Reason.SECRET_MISSING,
            "s3-keys",
        ),
        (
            observe(warnings=(ClusterWarning("Pod", "w-1", "FailedMount", "references non-existent secret key: id"),)),
            Reason.SECRET_MISSING,
            "key: id",
        ),
        (
            observe(warnings=(ClusterWarning("RayJob", "a1", "FailedCreate", "exceeded quota: few"),)),
            Reason.QUOTA_EXCEEDED,
            "few",
        ),
        (
            observe(
                warnings=(
                    ClusterWarning("RayCluster", "a1", _PODS_REFUSED, "failed quota: q: must specify limits.cpu"),
                )
            ),
            Reason.QUOTA_EXCEEDED,
            "limits.cpu",
        ),
        (
            observe(pod(initContainerStatuses=[{"state": {"waiting": _MISSING_SECRET}}])),
            Reason.SECRET_MISSING,
            '"later"',
        ),
        (
            observe(warnings=(ClusterWarning("RayJob", "a1", "Forbidden", "not allowed"),)),
            Reason.FORBIDDEN,
            "not allowed",
        ),
    ],
    ids=lambda value: value.value if isinstance(value, Reason) else "",
)
def test_blocker_names_its_reason_and_object(observed: Observed, reason: Reason, text: str) -> None:
    found = find_blocker(observed)
    assert found is not None
    assert found.reason is reason
    assert text in found.message


@pytest.mark.parametrize(
    "reason",
    [
        "PreCreateHookError",
        "CreateContainerError",
        "PreStartHookError",
        "RunContainerError",
        "PostStartHookError",
        "ReasonOfALaterRelease",
    ],
)
def test_any_reason_for_which_a_container_does_not_start_is_reported(reason: str) -> None:
    """As the kubelets of Kubernetes 1.33 to 1.36 write them. With `restartPolicy: Never` they try again without end."""
    found = find_blocker(observe(waiting_pod(reason)))
    assert found is not None and found.reason is Reason.CONTAINER_REFUSED
    assert found.message == f"pod w-1: container ray: {reason}"


def test_output_of_a_hook_is_not_copied() -> None:
    found = find_blocker(observe(waiting_pod("PostStartHookError", "Exec lifecycle hook failed: a diagnosis")))
    assert found is not None and found.message == "pod w-1: container ray: PostStartHookError"


@pytest.mark.parametrize("waiting", [{"reason": "ContainerCreating"}, {"reason": "PodInitializing"}, {}])
def test_container_that_is_being_created_is_not_blocked(waiting: dict[str, str]) -> None:
    """The kubelet reports no reason for one that is created and not started yet."""
    assert find_blocker(observe(pod(containerStatuses=[{"name": "ray", "state": {"waiting": waiting}}]))) is None


def test_message_of_a_kubelet_is_one_short_line() -> None:
    state = starting_state(
        observe(waiting_pod("CreateContainerError", "no\n\x1b[31mdevice" + 5000 * "!")), Phase.STARTING
    )
    assert state.message.startswith("pod w-1: container ray: CreateContainerError: no \ufffd[31mdevice!!!")
    assert len(state.message) < 600 and state.message.endswith(Reason.CONTAINER_REFUSED.fix)


def test_container_that_is_created_at_a_later_try_leaves_no_stall() -> None:
    cluster, operator = started_job(spec__cluster__workers=1)
    cluster.start_pods()
    (ray_job,) = cluster.ray_jobs.values()
    ray_job["status"] = {"jobDeploymentStatus": "Initializing", "startTime": format_time(cluster.now)}
    worker = cluster.pods["claims-triage-a1-worker"]
    ready = worker["status"]
    waiting = {"reason": "CreateContainerError", "message": "context deadline exceeded"}
    placed = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "PodReadyToStartContainers")]
    containers = [{"name": "ray", "state": {"waiting": waiting}}]
    worker["status"] = {"phase": "Pending", "conditions": placed, "containerStatuses": containers}
    operator.settle()
    assert condition(cluster, "Stalled")["reason"] == "ContainerRefused"
    containers[0]["state"] = {"waiting": {"reason": "ContainerCreating"}}
    operator.settle()
    assert condition(cluster, "Stalled")["status"] == "False"
    worker["status"] = ready
    operator.settle()
    assert (condition(cluster, "Stalled")["status"], cluster.status["phase"]) == ("False", "Starting")


def test_worker_of_a_running_job_whose_container_is_not_created_stalls_it() -> None:
    cluster, operator = running_job()
    waiting = {"reason": "CreateContainerError", "message": "failed to inject CDI devices"}
    containers = [{"name": "ray", "state": {"waiting": waiting}}]
    cluster.pods["claims-triage-a1-worker"]["status"] = {"phase": "Pending", "containerStatuses": containers}
    operator.settle()
    assert condition(cluster, "Stalled")["reason"] == "ContainerRefused"


def test_volume_that_cannot_be_mounted_is_not_a_missing_secret() -> None:
    warning = ClusterWarning(
        "Pod", "w-1", "FailedMount", "driver name efs.csi.aws.com not found in the list of CSI drivers"
    )
    assert find_blocker(observe(warnings=(warning,))) is None


def test_running_pods_are_not_blocked() -> None:
    running = pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    assert find_blocker(observe(running)) is None
    assert count_ready_workers([running, pod(phase="Pending")]) == 1


@pytest.mark.parametrize(("phase", "found"), [("Pending", True), ("Running", False)])
def test_warning_about_a_pod_counts_until_the_pod_has_started(phase: str, found: bool) -> None:
    """The last warning about a pod stays known for as long as the pod, also when its Secret was created meanwhile."""
    warning = ClusterWarning("Pod", "w-1", "FailedMount", 'secret "s3-keys" not found')
    assert (find_blocker(observe(pod(phase=phase), warnings=(warning,))) is not None) == found


def test_event_of_a_megabyte_is_searched_in_a_moment() -> None:
    """It took minutes, in which the operator of all namespaces did nothing else and lost its Lease."""
    for text in ("find key " * 140_000, 'secret "' * 150_000, "maximum " * 125_000, 'serviceaccount "' * 60_000):
        found = find_blocker(observe(warnings=(ClusterWarning("Pod", "w-1", "FailedMount", text),)))
        assert found is None


def test_message_is_one_line_without_control_characters() -> None:
    """A user may give a pod the labels of a job, and its image any text."""
    waiting = {"waiting": {"reason": "InvalidImageName"}}
    image = "none\n\x1b[31m\u202ekubectl delete tsj"
    found = starting_state(
        observe(pod(containerStatuses=[{"name": "ray", "image": image, "state": waiting}])), Phase.STARTING
    )
    assert found.message.startswith("pod w-1: none \ufffd[31mkubectl delete tsj: InvalidImageName: ")
