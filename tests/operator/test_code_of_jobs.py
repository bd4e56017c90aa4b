"""A job that brings code of its own into an allowed image, on a real API server: it is not started."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.platform.fixtures.job_harness import JobHarness

pytestmark = pytest.mark.cluster

CODE = {"name": "code", "mountPath": "/mnt/code", "configMap": "code"}
BROUGHT: dict[str, Any] = {
    "env": [{"name": "PYTHONPATH", "value": "/mnt/code"}],
    "volumes": [{**CODE, "mountPath": "/usr/local/lib/python3.11/site-packages/tensorguard"}],
}


@pytest.mark.parametrize("field", BROUGHT)
def test_new_job_is_not_started(cluster: JobHarness, field: str) -> None:
    cluster.apply(**{f"spec__cluster__{field}": BROUGHT[field]})
    cluster.reconcile()
    assert cluster.condition("Accepted")["status"] == "False"
    assert cluster.condition("Stalled")["message"].startswith(f"spec.cluster.{field}: ")
    assert cluster.get("rayjob", "claims-triage-a1") is None and "ledgerName" not in cluster.status()


def test_suspended_job_that_was_edited_is_not_resumed(cluster: JobHarness) -> None:
    cluster.apply(spec__cluster__volumes=[CODE])
    cluster.reconcile()
    assert cluster.get("rayjob", "claims-triage-a1") is not None
    patch(cluster, {"suspend": True})
    cluster.reconcile()
    patch(cluster, {"cluster": {"env": BROUGHT["env"]}})
    patch(cluster, {"suspend": False})
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "rayjob", "--all")
    cluster.reconcile()
    assert cluster.condition("Stalled")["message"].startswith("spec.cluster.env: PYTHONPATH")
    assert cluster.get("rayjob", "claims-triage-a2") is None
    patch(cluster, {"suspend": True})
    patch(cluster, {"cluster": {"env": None}})
    patch(cluster, {"suspend": False})
    cluster.reconcile()
    assert cluster.get("rayjob", "claims-triage-a2") is not None


def patch(cluster: JobHarness, spec: dict[str, Any]) -> None:
    command = ("patch", "tsj", cluster.name, "--type=merge", "-p", json.dumps({"spec": spec}))
    cluster.plane.kubectl("-n", cluster.namespace, *command)
