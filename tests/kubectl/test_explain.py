"""`kubectl tensafe explain` on a real API server: it finds what no operator has reported, and lists what it sees."""

from __future__ import annotations

import json

import pytest

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.status import Attempt
from tests.support.plugin_team import NAME, Plugin, Team, status_of

pytestmark = pytest.mark.cluster

ATTEMPT = Attempt(number=1, ray_job_name=f"{NAME}-a1", ray_cluster_name=f"{NAME}-a1-x")
STARTING = status_of(Phase.STARTING, Reason.STARTING, attempts=(ATTEMPT,))
UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    ],
}
WORKLOAD_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "workloads.kueue.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a copy for tests"},
    },
    "spec": {
        "group": "kueue.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "Workload", "plural": "workloads"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


def test_pod_without_a_node_is_found_although_no_operator_has_reported_it(team: Team, plugin: Plugin) -> None:
    job = team.create_job(status=STARTING)
    team.create_pod("worker-1", job, "worker", UNSCHEDULABLE)
    explained = plugin("explain", NAME)
    assert explained.out.startswith(f"{NAME}  Starting  Unschedulable")
    assert "0/3 nodes are available" in explained.out and Reason.UNSCHEDULABLE.fix in explained.out
    assert "No operator has written this" in explained.out


def test_event_about_a_missing_secret_is_found(team: Team, plugin: Plugin) -> None:
    job = team.create_job(status=STARTING)
    team.create_pod("worker-1", job, "worker", {"phase": "Pending"})
    team.create_warning("one", "Pod", "worker-1", "FailedMount", 'MountVolume failed: secret "s3-keys" not found')
    found = plugin("explain", NAME, "-o", "json").json
    assert (found["reason"], found["fix"], found["by_operator"]) == ("SecretMissing", Reason.SECRET_MISSING.fix, False)
    assert any("s3-keys" in sentence for sentence in found["evidence"])


def test_what_volcano_reports_about_the_pods_together_is_listed(team: Team, plugin: Plugin) -> None:
    job = team.create_job(status=STARTING)
    team.create_pod("head-1", job, "head", UNSCHEDULABLE)
    team.create_warning("own", "PodGroup", f"ray-{NAME}-a1-pg", "Unschedulable", "queue resource quota insufficient")
    team.create_warning("other", "PodGroup", "ray-other-a1-pg", "Unschedulable", "resource in cluster is overused")
    out = plugin("explain", NAME).out
    assert f"Event Unschedulable of PodGroup ray-{NAME}-a1-pg: queue resource quota insufficient" in out
    assert "overused" not in out


def test_container_that_was_killed_is_listed(team: Team, plugin: Plugin) -> None:
    job = team.create_job(status=STARTING)
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:00Z"}}
    container = {"name": "ray-worker", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": ended}
    team.create_pod("worker-1", job, "worker", {"phase": "Failed", "containerStatuses": [container]})
    out = plugin("explain", NAME).out
    assert "Pod worker-1, container ray-worker ended: OOMKilled, exit code 137" in out


def test_reason_of_the_operator_comes_first(team: Team, plugin: Plugin) -> None:
    blocked = status_of(
        Phase.STARTING,
        Reason.QUOTA_EXCEEDED,
        "exceeded quota",
        blocked="RayCluster x",
        stalled=True,
        attempts=(ATTEMPT,),
    )
    job = team.create_job(status=blocked)
    team.create_pod("worker-1", job, "worker", UNSCHEDULABLE)
    out = plugin("explain", NAME).out
    assert out.startswith(f"{NAME}  Starting  QuotaExceeded") and "RayCluster x: exceeded quota\n" in out
    assert out.count(Reason.QUOTA_EXCEEDED.fix) == 1 and "is not scheduled: Unschedulable" in out


def test_failed_attempt_comes_with_the_commands_for_its_logs(team: Team, plugin: Plugin) -> None:
    ended = ATTEMPT.model_copy(
        update={
            "end_time": "2026-01-01T00:00:00Z",
            "reason": "DatasetUnsuitable",
            "exit_code": 71,
            "message": "The data set is empty.",
        }
    )
    team.create_job(status=status_of(Phase.FAILED, Reason.DATASET_UNSUITABLE, attempts=(ended,)))
    assert "kubectl get rayjob" not in plugin("explain", NAME).out, "the RayJob is gone"
    team.create_ray_job(f"{NAME}-a1")
    out = plugin("explain", NAME).out
    assert Reason.DATASET_UNSUITABLE.fix in out and "exit code 71" in out
    assert f"kubectl tensafe logs {NAME} -n {team.namespace}" in out
    assert f"kubectl get rayjob {NAME}-a1 -n {team.namespace}" in out


def test_queue_of_kueue_is_read(team: Team, plugin: Plugin) -> None:
    team.plane.kubectl("apply", "-f", "-", text=json.dumps(WORKLOAD_CRD))
    team.plane.wait_for_crds()
    team.create_job(status=status_of(Phase.QUEUED, Reason.QUEUED, attempts=(ATTEMPT,)))
    uid = team.create_ray_job(f"{NAME}-a1")
    owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": f"{NAME}-a1", "uid": uid}
    message = "insufficient unused quota for nvidia.com/gpu in flavor any, 2 more needed"
    condition = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "rayjob-1", "ownerReferences": [owner]},
        "status": {"conditions": [condition]},
    }
    team.kubectl("create", "-f", "-", text=json.dumps(workload))
    explained = plugin("explain", NAME)
    assert f"Workload rayjob-1, QuotaReserved=False: Pending: {message}" in explained.out, explained
    assert "free room in the queue" in explained.out


def test_new_job_without_an_operator_is_explained(team: Team, plugin: Plugin) -> None:
    team.create_job()
    explained = plugin("explain", NAME)
    assert explained.code == 0 and "the operator has not seen it yet" in explained.out
