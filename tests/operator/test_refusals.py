"""What the API server refuses to the operator, for a policy, a webhook or a rule of its own, is shown in the status."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from tensafe_api.reasons import Phase, Reason
from tensafe_kubectl.hints import POD_FIELDS, find_hint
from tensafe_operator.decision.conditions import JobState
from tensafe_operator.decision.diagnosis import starting_state
from tensafe_operator.decision.observation import ClusterWarning, Observed
from tensafe_operator.job_network import JobNetwork
from tensafe_operator.runtime.api_errors import ApiUnavailable
from tensafe_operator.settings import Settings
from tests.support.fakes import statuses
from tests.support.job_harness import JobHarness, Refuse
from tests.support.manifests import MINIMAL, changed
from tests.support.polling import wait_until
from tests.support.programs.controlplane import free_ports

pytestmark = pytest.mark.cluster


def test_refused_correction_is_shown_and_the_end_of_the_attempt_is_recorded(
    cluster: JobHarness, platform_team: Refuse
) -> None:
    cluster.start_training()
    platform_team("UPDATE", "networking.k8s.io", "networkpolicies")

    def is_refused() -> bool:
        """A new policy takes effect after a moment."""
        policy = ("-n", cluster.namespace, "patch", "networkpolicy", "claims-triage", "--type=merge", "-p")
        cluster.plane.kubectl(*policy, '{"spec":{"egress":[{}]}}')
        cluster.reconcile(passes=1)
        return cluster.condition("Stalled")["status"] == "True"

    wait_until(is_refused, 60)
    stalled = cluster.condition("Stalled")
    assert stalled["reason"] == "Forbidden"
    assert "NetworkPolicy claims-triage" in stalled["message"]
    assert "the platform team owns this object" in stalled["message"]
    assert cluster.status()["phase"] == "Running"
    cluster.reconcile()
    assert cluster.condition("Stalled") == stalled, "another try changes nothing"
    cluster.set_ray_job_status(statuses.finished("FAILED", "exit code 10"))
    cluster.reconcile()
    assert "endTime" in cluster.status()["attempts"][0]


def test_refused_deletion_is_shown_and_the_job_waits_for_it(cluster: JobHarness, platform_team: Refuse) -> None:
    cluster.apply()
    cluster.reconcile()
    cluster.now += 10
    cluster.reconcile()
    platform_team("DELETE", "ray.io", "rayjobs")
    wait_until(lambda: is_deletion_refused(cluster), 60)
    cluster.plane.kubectl(
        "-n", cluster.namespace, "patch", "tsj", cluster.name, "--type=merge", "-p", '{"spec":{"suspend":true}}'
    )
    before = cluster.status()
    cluster.reconcile()
    stalled = cluster.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "Forbidden")
    assert "RayJob claims-triage-a1" in stalled["message"]
    assert cluster.status()["attempts"] == before["attempts"], "nothing counts on the deletion"


def test_old_ray_job_that_cannot_be_deleted_does_not_stop_the_count(cluster: JobHarness, platform_team: Refuse) -> None:
    """The RayJob of the first attempt is kept for ten minutes. Then the second one runs."""
    first = cluster.start_training()
    cluster.set_ray_job_status(statuses.finished("FAILED", "exit code 10"))
    cluster.reconcile()
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "pod", first.name, "--force", "--grace-period=0")
    cluster.now += 60
    cluster.reconcile()
    cluster.set_ray_job_status(statuses.running("claims-triage-a2-x"), "claims-triage-a2")
    pod = cluster.create_worker_pod(2)
    platform_team("DELETE", "ray.io", "rayjobs")
    wait_until(lambda: is_deletion_refused(cluster), 60)
    cluster.now += 600
    charges = [{"attempt": 1, "steps": 5, "incarnation": 1, "podUID": first.uid}]
    for through in (5, 9):  # it acquires the ledger, and charges
        own = {"attempt": 2, "steps": through - 5, "incarnation": 1, "podUID": pod.uid}
        cluster.charge(pod, through, attempt=2, charges=[*charges, own])
    cluster.reconcile(passes=2)
    assert cluster.condition("Stalled")["reason"] == "Forbidden"
    since, status = cluster.condition("Stalled")["lastTransitionTime"], cluster.status()
    assert (status["phase"], status["privacy"]["stepsCharged"]) == ("Running", 9)
    cluster.now += 60
    cluster.reconcile(passes=2)
    assert cluster.condition("Stalled")["lastTransitionTime"] == since
    cluster.set_ray_job_status(statuses.finished("FAILED", "exit code 10"), "claims-triage-a2")
    cluster.reconcile()
    assert "endTime" in cluster.status()["attempts"][1]


def is_deletion_refused(cluster: JobHarness) -> bool:
    """A new policy takes effect after a moment."""
    account = "--as=system:serviceaccount:tensafe-system:tensafe-operator"
    delete = (account, "-n", cluster.namespace, "delete", "rayjob", "claims-triage-a1", "--dry-run=server")
    return "platform team" in cluster.plane.kubectl(*delete, check=False).stderr


class NoWebhook:
    """An admission webhook for new RayJobs of a namespace, at a port where no server listens."""

    def __init__(self, cluster: JobHarness) -> None:
        self._plane, self._name = cluster.plane, f"{cluster.namespace}-webhook"
        (port,) = free_ports(1)
        rule = {"apiGroups": ["ray.io"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["rayjobs"]}
        webhook = {
            "name": "rayjobs.site.example",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}},
        }
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": self._name},
            "webhooks": [webhook],
        }
        self._plane.kubectl("create", "-f", "-", text=json.dumps(body))

    def __enter__(self) -> None:
        """Return nothing."""

    def __exit__(self, *_: object) -> None:
        self._plane.kubectl("delete", "validatingwebhookconfiguration", self._name)


def test_webhook_that_does_not_answer_is_named_in_the_status(cluster: JobHarness) -> None:
    cluster.apply(spec__suspend=True)
    cluster.reconcile()
    with NoWebhook(cluster):
        copy = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "a", "namespace": cluster.namespace}}
        create = ("create", "--dry-run=server", "-f", "-")
        wait_until(lambda: "webhook" in cluster.plane.kubectl(*create, text=json.dumps(copy), check=False).stderr, 60)
        cluster.apply(spec__suspend=False)
        with contextlib.suppress(ApiUnavailable):
            cluster.reconcile(patient=False)
        stalled = cluster.condition("Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "Forbidden")
        assert "rayjobs.site.example" in stalled["message"] and "webhook" in stalled["message"]
    wait_until(lambda: (cluster.reconcile(), cluster.get("RayJob", "claims-triage-a1"))[1] is not None, 60)
    assert cluster.condition("Stalled")["status"] == "False"


def resume_without(cluster: JobHarness, **wrong: Any) -> None:
    """Suspend the job, take out the wrong fields, and resume it. It must then start."""
    cluster.apply(spec__suspend=True, **wrong)
    cluster.reconcile()
    cluster.apply(spec__suspend=False)
    cluster.reconcile()
    assert cluster.get("RayJob", "claims-triage-a1") is not None
    assert cluster.condition("Stalled")["status"] == "False"


def test_misspelt_field_that_kuberay_would_drop_stops_the_start(cluster: JobHarness) -> None:
    """The author would believe that the workers run on the nodes in the manifest."""
    misspelt = {"nodeAffinity": {"requiredDuringScheduling": {"nodeSelectorTerms": []}}}
    cluster.apply(spec__cluster__affinity=misspelt)
    cluster.reconcile()
    stalled = cluster.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "UnknownField")
    assert "affinity.nodeAffinity.requiredDuringScheduling" in stalled["message"]
    assert cluster.get("RayJob", "claims-triage-a1") is None
    resume_without(cluster, spec__cluster__affinity=misspelt)


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}}]}}},
        {"affinity": {"nodeAffinity": "x"}},
        {"topologySpreadConstraints": [{"maxSkew": "a", "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]},
    ],
    ids=["required field", "type", "spread"],
)
def test_placement_that_the_crd_of_ray_jobs_refuses_is_corrected_by_its_author(
    cluster: JobHarness, spec: dict[str, Any]
) -> None:
    wrong = {f"spec__cluster__{name}": value for name, value in spec.items()}
    cluster.apply(**wrong)
    cluster.reconcile()
    stalled = cluster.condition("Stalled")
    assert stalled["reason"] == "Forbidden" and "is invalid" in stalled["message"]
    assert find_hint(Reason.FORBIDDEN, stalled["message"]) == POD_FIELDS
    resume_without(cluster, **wrong)


def test_network_policy_that_cannot_exist_is_corrected_in_the_chart(cluster: JobHarness) -> None:
    wrong = {"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["192.168.0.0/16"]}}]}
    cluster.settings = Settings(job_network=JobNetwork.model_validate({"egress": [wrong]}))
    cluster.apply()
    cluster.reconcile()
    stalled = cluster.condition("Stalled")
    assert stalled["reason"] == "Forbidden" and "NetworkPolicy" in stalled["message"]
    assert "jobs.networkPolicy" in find_hint(Reason.FORBIDDEN, stalled["message"])


def answer_to_head_pod(cluster: JobHarness) -> str:
    """The message of the Event that KubeRay writes when the API server refuses the head's pod."""
    template = (cluster.get("RayJob", "claims-triage-a1") or {})["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    metadata = {"name": "x-head", "namespace": cluster.namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    made = cluster.plane.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(pod), check=False)
    return f"Failed to create head Pod {cluster.namespace}/x-head, {made.stderr}"


def state_of_refused_pod(cluster: JobHarness, message: str) -> JobState:
    warning = ClusterWarning("RayCluster", "claims-triage-a1-x", "FailedToCreateHeadPod", message)
    job = cluster.get("TenSafeTrainingJob", cluster.name) or {}
    return starting_state(Observed(job, warnings=(warning,)), Phase.STARTING)


def test_limit_range_with_a_default_below_the_request_has_its_fix(cluster: JobHarness) -> None:
    """A quota of limits.cpu needs a default, and the head asks for two CPUs."""
    limits = [{"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}]
    metadata = {"name": "defaults", "namespace": cluster.namespace}
    limit_range = {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}
    cluster.plane.kubectl("create", "-f", "-", text=json.dumps(limit_range))
    cluster.apply()
    cluster.reconcile()
    wait_until(lambda: "cpu limit of 1" in answer_to_head_pod(cluster), 60)
    state = state_of_refused_pod(cluster, answer_to_head_pod(cluster))
    assert state.reason is Reason.FORBIDDEN and "LimitRange" in find_hint(Reason.FORBIDDEN, state.message)


def test_affinity_that_no_pod_may_have_is_corrected_by_its_author(cluster: JobHarness) -> None:
    wrong = {"matchExpressions": [{"key": "zone", "operator": "Foo", "values": ["a"]}]}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [wrong]}}
    cluster.apply(spec__cluster__head={"affinity": {"nodeAffinity": terms}})
    cluster.reconcile()
    message = answer_to_head_pod(cluster)
    state = state_of_refused_pod(cluster, message)
    assert "operator" in message and state.reason is Reason.FORBIDDEN
    assert find_hint(Reason.FORBIDDEN, state.message) == POD_FIELDS


def test_ray_job_that_the_api_server_cannot_store_stalls_its_job(cluster: JobHarness) -> None:
    """One with a signer has the pods of a worker twice, and in each the variables twice."""
    keys, longest = [f"{'a' * 250}/{'b' * 60}{number}" for number in range(10, 74)], "\u3042" * 1024
    terms = [{"matchExpressions": [{"key": "a", "operator": "NotIn", "values": [key[-63:] for key in keys] * 7}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    own = {
        "spec.cluster.env": [{"name": f"A{key[-2:]}", "value": longest} for key in keys],
        "spec.cluster.podAnnotations": {f"a{key[-2:]}": longest for key in keys},
        "spec.cluster.podLabels": dict.fromkeys(keys, "v" * 63),
        "spec.cluster.nodeSelector": dict.fromkeys(keys, "v" * 63),
        "spec.cluster.affinity": affinity,
        "spec.cluster.head": {"affinity": affinity},
        "spec.cluster.tolerations": [{"key": key, "operator": "Exists"} for key in keys[:32]],
        "spec.checkpoint.signing": {"secretName": "signing-key"},
    }
    manifest = changed(MINIMAL, {"metadata.namespace": cluster.namespace, **own})
    cluster.plane.kubectl("create", "-f", "-", text=json.dumps(manifest))
    cluster.reconcile()
    assert cluster.get("RayJob", "claims-triage-a1") is None
    assert cluster.condition("Stalled")["reason"] == "Forbidden"
    assert cluster.condition("Stalled")["message"].startswith("RayJob claims-triage-a1: etcdserver: ")
