"""The service account that the operator creates for a job, on a real API server: no user chooses which one it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.platform.fixtures.job_harness import JobHarness

pytestmark = pytest.mark.cluster

ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/records"}
"""What an administrator writes to an account, to which a cloud then gives the rights of a role."""


def create_owned(cluster: JobHarness, kind: str, name: str, **more: Any) -> None:
    """Create an object of another user, with an owner reference to the job, which the role `edit` lets a user add."""
    uid = (cluster.get("tsj", cluster.name) or {})["metadata"]["uid"]
    owner = {"apiVersion": "tensafe.io/v1alpha1", "kind": "TenSafeTrainingJob", "name": cluster.name, "uid": uid}
    metadata = {"name": name, "annotations": ROLE, "ownerReferences": [owner]}
    body = {"kind": kind, "metadata": metadata, **more}
    cluster.plane.kubectl("-n", cluster.namespace, "create", "-f", "-", text=json.dumps(body))


def worker_account(cluster: JobHarness) -> str:
    ray_job = cluster.get("rayjob", "claims-triage-a1") or {}
    (workers,) = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return str(workers["template"]["spec"]["serviceAccountName"])


def test_job_cannot_take_an_account_by_its_own_name(cluster: JobHarness) -> None:
    """A job `etl` without `serviceAccountName` would otherwise run with the rights of an account `etl`."""
    cluster.apply(spec__cluster__serviceAccountName=None)
    create_owned(cluster, "ServiceAccount", cluster.name, apiVersion="v1")
    cluster.reconcile()
    name = worker_account(cluster)
    assert name != cluster.name
    assert cluster.ledger()["spec"]["serviceAccountName"] == name
    made = cluster.get("serviceaccount", name)
    assert made is not None and not ROLE.keys() & made["metadata"].get("annotations", {}).keys()
    bound = cluster.get("rolebinding", f"{cluster.name}-trainer") or {}
    assert [each["name"] for each in bound["subjects"]] == [name]


def test_object_that_the_job_owns_without_controlling_it_is_not_taken(cluster: JobHarness) -> None:
    """Any user may add an owner to an object. Only the operator's own objects are controlled by the job."""
    cluster.apply()
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    group = "rbac.authorization.k8s.io/v1"
    create_owned(cluster, "RoleBinding", f"{cluster.name}-trainer", apiVersion=group, roleRef=role, subjects=[])
    cluster.reconcile()
    assert cluster.get("rayjob", "claims-triage-a1") is None
    assert cluster.condition("Stalled")["reason"] == "NameTaken"
