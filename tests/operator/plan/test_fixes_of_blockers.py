"""A blocker whose cause needs another fix than its reason has that fix."""

from __future__ import annotations

import pytest

from e2e.platform.fixtures.blocked_pods import UNSCHEDULABLE, UNSIGNED, observe, pod, waiting_pod
from e2e.platform.fixtures.fake_cluster import FakeCluster, condition, started_job
from tensafe_api import fixes
from tensafe_api.reasons import Phase, Reason
from tensafe_operator import names
from tensafe_operator.plan.blockers import find_blocker, starting_state
from tensafe_operator.plan.observed import ClusterWarning, Observed


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


def test_fix_for_a_root_image_names_the_field() -> None:
    assert "cluster.securityContext.runAsUser" in Reason.ROOT_IMAGE.fix


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


def test_parameters_that_fit_into_no_config_map_are_shortened_by_the_author() -> None:
    name = "claims-triage-a2-0123456789ab"
    refused = f'ConfigMap "{name}" is invalid: []: Too long: may not be more than 1048576 bytes'
    warning = ClusterWarning("ConfigMap", name, "Forbidden", refused)
    state = starting_state(Observed(FakeCluster.with_job().job, warnings=(warning,)), Phase.STARTING)
    assert state.reason is Reason.FORBIDDEN
    assert state.message.endswith(fixes.PARAMETERS_TOO_LARGE)


@pytest.mark.parametrize(
    "refused",
    [
        "etcdserver: request is too large",
        "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2097200 vs. 2097152)",
    ],
)
def test_ray_job_that_is_too_large_is_made_smaller_by_the_author(refused: str) -> None:
    """Characters such as < take six bytes in what the API server stores."""
    warning = ClusterWarning("RayJob", "claims-triage-a1", "Forbidden", refused)
    state = starting_state(Observed(FakeCluster.with_job().job, warnings=(warning,)), Phase.STARTING)
    assert state.message.endswith(fixes.PARAMETERS_TOO_LARGE)


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
    condition = {**UNSCHEDULABLE, "message": f"0/3 nodes are available: {cause}"}
    state = starting_state(observe(pod(conditions=[condition])), Phase.STARTING)
    assert state.reason is Reason.UNSCHEDULABLE
    assert cause in state.message and fix in state.message
