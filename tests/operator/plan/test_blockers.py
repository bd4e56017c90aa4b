"""Each blocker is reported by its reason, with the name of the object."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import FakeCluster, condition, running_job, started_job
from tensafe_api import fixes
from tensafe_api.reasons import Phase, Reason
from tensafe_api.timestamps import format_time
from tensafe_operator import names
from tensafe_operator.plan.blockers import count_ready_workers, find_blocker, starting_state
from tensafe_operator.plan.observed import ClusterWarning, Observed


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "w-1", "labels": {"ray.io/node-type": "worker"}}, "status": status}


def waiting_pod(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(containerStatuses=[{"name": "ray", "image": "registry/none:1", "state": state}])


def crash_loop(exit_code: int, reason: str) -> dict[str, Any]:
    found = waiting_pod("CrashLoopBackOff")
    last = {"terminated": {"exitCode": exit_code, "reason": reason}}
    found["status"]["containerStatuses"][0]["lastState"] = last
    return found


def observe(
    *pods: dict[str, Any], warnings: tuple[ClusterWarning, ...] = (), kuberay: bool = True, guarded: bool = True
) -> Observed:
    return Observed(FakeCluster.with_job().job, pods=pods, warnings=warnings, kuberay=kuberay, guarded=guarded)


def unknown_field(path: str) -> ClusterWarning:
    text = f'RayJob in version "v1" cannot be handled as a RayJob: strict decoding error: unknown field "{path}"'
    return ClusterWarning("RayJob", "claims-triage-a1", Reason.FORBIDDEN, text)


_TEMPLATE = "spec.rayClusterSpec.workerGroupSpecs[0].template.spec"
_UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}
_FITS = {**_UNSCHEDULABLE, "reason": "Schedulable", "message": "Pod clinic/w-1 can possibly be assigned to n-1"}
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
        (observe(pod(conditions=[_UNSCHEDULABLE])), Reason.UNSCHEDULABLE, "no GPU"),
        (observe(pod(conditions=[_FITS]), pod(conditions=[_UNSCHEDULABLE])), Reason.UNSCHEDULABLE, "no GPU"),
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


UNSIGNED = "image pull failed for registry/none:1 because the signature validation failed: no signatures found"


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("SignatureValidationFailed", UNSIGNED),
        ("ImagePullBackOff", f'Back-off pulling image "registry/none:1": SignatureValidationFailed: {UNSIGNED}'),
    ],
)
def test_image_that_is_not_signed_has_a_fix_of_its_own(reason: str, message: str) -> None:
    """As with the policy of CRI-O: to push the image again does not help."""
    state = starting_state(observe(waiting_pod(reason, message)), Phase.STARTING)
    assert state.reason is Reason.IMAGE_PULL_FAILED
    assert state.message == f"pod w-1: registry/none:1: {reason}: {message}: {fixes.IMAGE_UNSIGNED}"


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


@pytest.mark.parametrize(
    ("requested", "fix"),
    [
        ("count/rayjobs.ray.io=1", fixes.QUOTA_OF_OBJECTS),
        ("secrets=1", fixes.QUOTA_OF_OBJECTS),
        ("count/pods=1", fixes.QUOTA_OF_PODS),
        ("pods=1", fixes.QUOTA_OF_PODS),
        ("pods=1,requests.cpu=4", ""),
        ("requests.cpu=4,pods=1", ""),
    ],
)
def test_quota_of_objects_has_a_fix_that_names_no_resources(requested: str, fix: str) -> None:
    text = f'"a1" is forbidden: exceeded quota: q, requested: {requested}, used: x, limited: x'
    found = find_blocker(observe(warnings=(ClusterWarning("RayJob", "a1", Reason.FORBIDDEN, text),)))
    assert found is not None and found.reason is Reason.QUOTA_EXCEEDED
    assert found.fix == fix


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


def test_fix_for_a_root_image_names_the_field() -> None:
    assert "cluster.securityContext.runAsUser" in Reason.ROOT_IMAGE.fix


def test_running_pods_are_not_blocked() -> None:
    running = pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    assert find_blocker(observe(running)) is None
    assert count_ready_workers([running, pod(phase="Pending")]) == 1


@pytest.mark.parametrize(("phase", "found"), [("Pending", True), ("Running", False)])
def test_warning_about_a_pod_counts_until_the_pod_has_started(phase: str, found: bool) -> None:
    """The last warning about a pod stays known for as long as the pod, also when its Secret was created meanwhile."""
    warning = ClusterWarning("Pod", "w-1", "FailedMount", 'secret "s3-keys" not found')
    assert (find_blocker(observe(pod(phase=phase), warnings=(warning,))) is not None) == found


@pytest.mark.parametrize(
    ("object_", "fix"),
    [
        ('secret "claims-triage-11111111-key-0123abcd" not found', "cannot be restored. Create a new job."),
        ('secret "claims-triage-a1-tls-0123abcd" not found', "the next attempt gets a new one."),
        ("couldn't find key ray.token in Secret clinic/claims-triage-a1-tls-0", "the next attempt gets a new one."),
        ('configmap "claims-triage-a1-0123456789ab" not found', "the next attempt gets a new one."),
        ('secret "hub" not found', "Create the object or the key in the message"),
    ],
)
def test_missing_object_of_the_operator_has_a_fix_that_a_user_can_follow(object_: str, fix: str) -> None:
    cluster, operator = started_job()
    cluster.start_pods()
    for each in cluster.pods.values():
        waiting = {"reason": "CreateContainerConfigError", "message": object_}
        each["status"] = {"phase": "Pending", "containerStatuses": [{"name": "ray", "state": {"waiting": waiting}}]}
    for each in cluster.ray_jobs.values():
        each["status"] = {"jobDeploymentStatus": "Initializing"}
    operator.settle()
    stalled = condition(cluster, "Stalled")
    assert stalled["reason"] == "SecretMissing"
    assert object_ in stalled["message"] and fix in stalled["message"]


def test_secret_that_cert_manager_does_not_issue_has_a_fix_of_its_own() -> None:
    """As with a misspelt issuer: the next attempt would wait for its own Secret in the same way."""
    cluster, operator = started_job()
    cluster.start_pods()
    (ray_job,) = cluster.ray_jobs.values()
    ray_job["status"] = {"jobDeploymentStatus": "Initializing"}
    issued = names.authority_name(ray_job["metadata"]["annotations"][names.TLS_SECRET])
    waiting = {"reason": "CreateContainerConfigError", "message": f'secret "{issued}" not found'}
    containers = [{"name": "certificate", "state": {"waiting": waiting}}]
    cluster.pods["claims-triage-a1-head"]["status"] = {"phase": "Pending", "initContainerStatuses": containers}
    operator.settle()
    stalled = condition(cluster, "Stalled")
    assert stalled["reason"] == "SecretMissing"
    assert stalled["message"].endswith(f'secret "{issued}" not found: {fixes.CERTIFICATE}')
    waiting["message"] = f"couldn't find key tls.crt in Secret clinic/{issued}"
    operator.settle()
    assert condition(cluster, "Stalled")["message"].endswith(f"clinic/{issued}: {fixes.CERTIFICATE}")


def test_certificate_without_cert_manager_has_a_fix_of_its_own() -> None:
    warning = ClusterWarning("Certificate", "claims-triage-a1-tls-0123abcd-ca", "Forbidden", "404 page not found")
    state = starting_state(Observed(FakeCluster.with_job().job, warnings=(warning,)), Phase.STARTING)
    assert state.reason is Reason.FORBIDDEN
    assert state.message.endswith(fixes.CERT_MANAGER)


@pytest.mark.parametrize(
    ("account", "cause", "fix"),
    [
        ("trainer", 'serviceaccount "trainer" not found', "Create this service account in the job's namespace"),
        (None, 'serviceaccount "claims-triage-1a2b" not found', "the next attempt gets a new one."),
        ("trainer", "no PriorityClass with name batch was found", "correct spec.cluster or its profile"),
        ("trainer", 'pod rejected: RuntimeClass "gvisor" not found', "correct spec.cluster"),
        ("trainer", "maximum memory usage per Container is 4Gi, but limit is 8Gi", "Change the LimitRange"),
        (
            "trainer",
            'Pod "x-head" is invalid: spec.containers[0].resources.requests: Invalid value: "2": must be less than or '
            "equal to cpu limit of 1",
            "Change the LimitRange",
        ),
        (
            "trainer",
            'Pod "x-worker" is invalid: spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.'
            'nodeSelectorTerms[0].matchExpressions[0].operator: Invalid value: "Foo": not a valid selector operator',
            "Suspend the job, correct the fields in the message",
        ),
        ("trainer", "denied by policy", "repair the policy or the webhook in the message"),
    ],
)
def test_refused_pod_has_the_fix_of_its_cause(account: str | None, cause: str, fix: str) -> None:
    """As KubeRay reports what the API server's admission answers."""
    job = FakeCluster.with_job(spec__cluster__serviceAccountName=account).job
    warning = ClusterWarning("RayCluster", "a1", "FailedToCreateWorkerPod", f"pods is forbidden: {cause}")
    state = starting_state(Observed(job, warnings=(warning,)), Phase.STARTING)
    assert state.reason is Reason.FORBIDDEN
    assert cause in state.message and fix in state.message


@pytest.mark.parametrize(
    ("cause", "fix"),
    [
        ('persistentvolumeclaim "data" not found. not found', "Create this PersistentVolumeClaim"),
        ("pod has unbound immediate PersistentVolumeClaims", "a StorageClass that provisions"),
        ("1 node(s) didn't match Pod's node affinity/selector", "change nodeSelector, tolerations and affinity"),
        ("1 node(s) had untolerated taint {gpu: true}", "change nodeSelector, tolerations and affinity"),
        ("pod group is not ready, 3 Pending, 3 minAvailable", "Free resources in the queue or on the nodes"),
        ("1 Insufficient cpu, 2 node(s) had untolerated taint {gpu: true}", "lower the resources in cluster.worker"),
    ],
)
def test_pod_that_no_node_takes_has_the_fix_of_its_cause(cause: str, fix: str) -> None:
    condition = {**_UNSCHEDULABLE, "message": f"0/3 nodes are available: {cause}"}
    state = starting_state(observe(pod(conditions=[condition])), Phase.STARTING)
    assert state.reason is Reason.UNSCHEDULABLE
    assert cause in state.message and fix in state.message


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
