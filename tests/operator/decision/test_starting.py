"""What is created for an attempt, and what it waits for."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tensafe_operator import names
from tensafe_operator.decision import decide
from tensafe_operator.decision.observation import Create
from tensafe_operator.decision.starting import ANSWER_SECONDS
from tests.support.fake_cluster import (
    SETTINGS,
    FakeCluster,
    FakeOperator,
    Killed,
    condition,
    own_actions,
    running_job,
    start_next_attempt,
    started_job,
)


def test_cleared_status_starts_no_attempt_beside_a_running_one() -> None:
    cluster, operator = started_job()
    cluster.job["status"] = {}
    for _ in range(3):
        operator.settle()
        assert len(cluster.live_ray_jobs()) <= 1
    assert cluster.created == ["claims-triage-a1", "claims-triage-a1"], "nothing knows the number any more"


def test_job_waits_for_kuberay_and_then_starts() -> None:
    cluster = FakeCluster.with_job()
    cluster.kuberay = False
    operator = FakeOperator(cluster)
    operator.settle()
    assert condition(cluster, "Stalled")["reason"] == "KubeRayMissing"
    cluster.kuberay = True
    operator.settle()
    assert cluster.created == ["claims-triage-a1"]


def test_job_that_is_edited_during_its_start_gets_parameters_of_its_own() -> None:
    """The ConfigMap with the earlier parameters is immutable. A quota may refuse the RayJob after it for a day."""
    for died in itertools.count(1):
        cluster = FakeCluster.with_job()
        operator = FakeOperator(cluster)
        for _ in range(2):
            operator.reconcile()  # the ledger, and the attempt in the status
        with contextlib.suppress(Killed):
            operator.reconcile(dies_after=died)
        if cluster.created:
            break
        earlier = dict(cluster.parameters)
        cluster.job["spec"]["retry"] = {"maxAttempts": 7}
        cluster.job["metadata"]["generation"] += 1
        operator.settle()
        assert cluster.created == ["claims-triage-a1"] and not cluster.conflicts
        assert condition(cluster, "Stalled")["status"] == "False"
        assert mounted_parameters(cluster)["spec"]["retry"] == {"maxAttempts": 7}
    assert earlier, "the operator was killed between the ConfigMap and the RayJob"


def mounted_parameters(cluster: FakeCluster) -> dict[str, Any]:
    """The job that the pods of the first attempt read."""
    (ray_job,) = cluster.ray_jobs.values()
    volumes = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["volumes"]
    name = next(each["configMap"]["name"] for each in volumes if each["name"] == "job")
    return dict(json.loads(cluster.parameters[name]["data"]["job.json"]))


Change = Callable[[FakeCluster], object]


def opened_to_all(cluster: FakeCluster) -> None:
    cluster.corrected["NetworkPolicy"]["spec"]["egress"] = [{}]


def opened_to_more_ports(cluster: FakeCluster) -> None:
    egress = cluster.corrected["NetworkPolicy"]["spec"]["egress"]
    next(rule["ports"] for rule in egress if "ports" in rule)[0]["endPort"] = 65535


CHANGES: dict[str, tuple[str, Change]] = {
    "policy deleted": ("NetworkPolicy", lambda cluster: cluster.corrected.pop("NetworkPolicy")),
    "policy opened": ("NetworkPolicy", opened_to_all),
    "policy with more ports": ("NetworkPolicy", opened_to_more_ports),
    "policy without labels": (
        "NetworkPolicy",
        lambda cluster: cluster.corrected["NetworkPolicy"]["metadata"]["labels"].pop(names.JOB_UID),
    ),
}


def content(body: dict[str, Any]) -> dict[str, Any]:
    """A copy of an object without what the API server adds."""
    added = ("uid", "creationTimestamp")
    metadata = {name: value for name, value in body["metadata"].items() if name not in added}
    return copy.deepcopy({**body, "metadata": metadata})


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("job", [started_job, running_job])
def test_policy_and_binding_of_an_attempt_are_brought_back(
    job: Callable[[], tuple[FakeCluster, FakeOperator]], name: str
) -> None:
    cluster, operator = job()
    kind, change = CHANGES[name]
    before = content(cluster.corrected[kind])
    status = cluster.status
    change(cluster)
    cluster.take_snapshot()
    (action,) = own_actions(decide(cluster.observe(), cluster.now, SETTINGS))
    assert isinstance(action, Create) and action.kind == kind
    operator.reconcile()
    assert content(cluster.corrected[kind]) == before
    assert cluster.status == status


def test_new_setting_of_the_networks_reaches_a_running_attempt() -> None:
    cluster, _ = running_job()
    observed, wider = cluster.observe(), replace(SETTINGS, egress_cidrs=("10.1.0.0/16",))
    assert own_actions(decide(observed, cluster.now, SETTINGS)) == []
    (action,) = own_actions(decide(observed, cluster.now, wider))
    assert isinstance(action, Create) and action.kind == "NetworkPolicy"
    assert {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]} in action.manifest["spec"]["egress"]


def test_labels_of_others_on_a_policy_are_left_alone() -> None:
    cluster, _ = running_job()
    cluster.corrected["NetworkPolicy"]["metadata"]["labels"]["team"] = "radiology"
    assert own_actions(decide(cluster.observe(), cluster.now, SETTINGS)) == []


def test_account_and_rights_are_applied_until_all_pods_are_ready() -> None:
    """A user, or the end of a namespace of the same name, may have removed them."""
    cluster, operator = running_job(spec__cluster__workers=1, spec__cluster__serviceAccountName=None)
    shared = {("ServiceAccount", "tensafe-trainer"), ("RoleBinding", "tensafe-trainer")}
    assert shared <= cluster.others
    assert decide(cluster.observe(), cluster.now, SETTINGS).actions == (), "the pods are ready"
    cluster.pods["claims-triage-a1-worker"]["status"]["conditions"] = []
    cluster.others -= shared
    operator.settle()
    assert shared <= cluster.others


def test_policy_of_a_job_that_has_ended_is_left_alone() -> None:
    cluster, operator = running_job()
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert cluster.status["phase"] == "Succeeded"
    cluster.corrected.clear()
    cluster.take_snapshot()
    operator.settle()
    assert cluster.corrected == {}


@pytest.mark.parametrize(("named", "account"), [(None, "tensafe-trainer"), ("federated", "federated")])
def test_every_attempt_has_the_account_that_the_ledger_names(named: str | None, account: str) -> None:
    cluster, operator = started_job(spec__cluster={"workers": 2, **({"serviceAccountName": named} if named else {})})
    start_next_attempt(cluster, operator)
    assert cluster.created == ["claims-triage-a1", "claims-triage-a2"]
    for ray_job in cluster.ray_jobs.values():
        (group,) = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        assert group["template"]["spec"]["serviceAccountName"] == account
    made = {name for kind, name in cluster.others if kind == "ServiceAccount"}
    assert made == (set() if named else {account}), "the account that a job names is left as it is"
    assert ("RoleBinding", names.role_binding_name(account)) in cluster.others


def test_first_status_of_kuberay_and_the_start_are_one_change() -> None:
    cluster = FakeCluster.with_job()
    operator = FakeOperator(cluster)
    operator.settle()
    assert cluster.created and "startTime" not in cluster.status["attempts"][0]
    assert operator.wake == cluster.now + ANSWER_SECONDS
    cluster.start_pods()
    operator.settle()
    assert {"startTime", "rayClusterName"} <= cluster.status["attempts"][0].keys()


def test_start_is_reported_although_kuberay_does_not_answer() -> None:
    cluster, _ = started_job()
    assert "startTime" in cluster.status["attempts"][0]
