"""The service account of workers, on a real API server: jobs share one, unless a job names its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensafe_operator import names
from tests.support.job_harness import JobHarness

pytestmark = pytest.mark.cluster

ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/records"}
"""What an administrator writes to an account, to which a cloud then gives the rights of a role."""


def worker_account(cluster: JobHarness) -> str:
    ray_job = cluster.get("RayJob", "claims-triage-a1") or {}
    (workers,) = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return str(workers["template"]["spec"]["serviceAccountName"])


def bound_accounts(cluster: JobHarness, account: str) -> list[str]:
    bound = cluster.get("RoleBinding", names.role_binding_name(account)) or {}
    return [each["name"] for each in bound["subjects"]]


def test_jobs_share_an_account_which_an_administrator_may_annotate(cluster: JobHarness) -> None:
    metadata = {"name": names.TRAINER_ACCOUNT, "annotations": ROLE}
    body = json.dumps({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    cluster.plane.kubectl("-n", cluster.namespace, "create", "-f", "-", text=body)
    cluster.apply(spec__cluster__serviceAccountName=None)
    cluster.reconcile()
    assert worker_account(cluster) == cluster.ledger()["spec"]["serviceAccountName"] == names.TRAINER_ACCOUNT
    assert bound_accounts(cluster, names.TRAINER_ACCOUNT) == [names.TRAINER_ACCOUNT]
    shared = cluster.get("ServiceAccount", names.TRAINER_ACCOUNT)
    assert shared is not None and shared["metadata"]["annotations"] == ROLE
    assert shared["automountServiceAccountToken"] is False

    cluster.plane.kubectl("-n", cluster.namespace, "delete", "tsj", cluster.name)
    cluster.reconcile()
    assert cluster.get("ServiceAccount", names.TRAINER_ACCOUNT), "it belongs to no job"


def test_account_of_a_job_gets_the_rights_and_is_left_as_it_is(cluster: JobHarness) -> None:
    cluster.apply()
    cluster.reconcile()
    assert worker_account(cluster) == "trainer"
    assert bound_accounts(cluster, "trainer") == ["trainer"]
    assert cluster.get("ServiceAccount", names.TRAINER_ACCOUNT) is None


def test_object_that_the_job_owns_without_controlling_it_is_not_taken(cluster: JobHarness) -> None:
    """Any user may add an owner to an object. Only the operator's own objects are controlled by the job."""
    cluster.apply()
    uid = (cluster.get("TenSafeTrainingJob", cluster.name) or {})["metadata"]["uid"]
    owner = {"apiVersion": "tensafe.io/v1alpha1", "kind": "TenSafeTrainingJob", "name": cluster.name, "uid": uid}
    policy: dict[str, Any] = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": cluster.name, "ownerReferences": [owner]},
        "spec": {"podSelector": {}},
    }
    cluster.plane.kubectl("-n", cluster.namespace, "create", "-f", "-", text=json.dumps(policy))
    cluster.reconcile()
    assert cluster.get("RayJob", "claims-triage-a1") is None
    assert cluster.condition("Stalled")["reason"] == "NameTaken"
