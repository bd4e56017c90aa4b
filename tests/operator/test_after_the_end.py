"""What a job says about its end, what happens after it, and what its author may change before, on a real API server."""

from __future__ import annotations

import json

import pytest

from tests.support.fakes import statuses
from tests.support.job_harness import FINAL, JobHarness

pytestmark = pytest.mark.cluster

PLACED = {"workers": 2, "serviceAccountName": "trainer", "affinity": {"nodeAffinity": {"requiredDuring": "any"}}}


def test_job_is_deleted_after_its_ttl_and_its_ledger_stays(cluster: JobHarness) -> None:
    """With the rights of the chart's roles."""
    cluster.apply(spec__ttlSecondsAfterFinished=100)
    cluster.reconcile()
    cluster.set_ray_job_status(statuses.running("claims-triage-a1-x"))
    pod = cluster.create_worker_pod()
    cluster.charge(pod, 5)
    cluster.charge(pod, 20, outcome="Completed", releases=[FINAL])
    cluster.set_ray_job_status(statuses.finished("SUCCEEDED"))
    cluster.reconcile()
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "pod", pod.name, "--force", "--grace-period=0")
    due = cluster.reconcile()
    assert due == cluster.now + 100
    ledger = cluster.status()["ledgerName"]
    cluster.now += 100
    cluster.reconcile(passes=1)
    assert cluster.get("TenSafeTrainingJob", cluster.name) is None
    assert cluster.get("PrivacyLedger", ledger)
    assert cluster.reconcile() is None, "nothing is left to do"


def test_job_names_the_pod_that_was_out_of_memory_before_it_failed(cluster: JobHarness) -> None:
    """KubeRay deletes the pod at once, and creates another one. The workers fail long after that."""
    pod = cluster.start_training()
    ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": statuses.now(), "finishedAt": statuses.now()}
    container = {"name": "ray", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Failed", "containerStatuses": [container | {"state": {"terminated": ended}}]}
    own = ("-n", cluster.namespace)
    patch = json.dumps({"status": status})
    cluster.plane.kubectl(*own, "patch", "pod", pod.name, "--subresource=status", "--type=merge", "-p", patch)
    cluster.reconcile(passes=1)
    cluster.plane.kubectl(*own, "delete", "pod", pod.name, "--force", "--grace-period=0")
    cluster.reconcile()
    (remembered,) = cluster.status()["attempts"][0]["failedPods"]
    assert (remembered["pod"], remembered["reason"], remembered["exitCode"]) == (pod.name, "OOMKilled", 137)
    cluster.set_ray_job_status(statuses.finished("FAILED", "exit code 65"))
    cluster.reconcile()
    assert cluster.condition("Failed")["reason"] == "NoProgress"
    message = cluster.condition("Failed")["message"]
    assert pod.name in message and "OOMKilled" in message


def test_placement_changes_only_while_the_job_is_suspended(cluster: JobHarness) -> None:
    """The API server does not know the fields of `affinity`, and compares them all the same."""
    cluster.apply(spec__cluster=PLACED)
    cluster.apply(spec__cluster=PLACED)
    other = {**PLACED, "affinity": {"nodeAffinity": {"requiredDuring": "another"}}}
    head = {**PLACED, "head": {"tolerations": [{"key": "spot", "operator": "Exists"}]}}
    for changed in (other, head):
        patch = json.dumps({"spec": {"cluster": changed}})
        where = ("-n", cluster.namespace, "patch", "tsj", cluster.name, "--type=merge", "-p", patch)
        refused = cluster.plane.kubectl(*where, check=False)
        assert "spec.cluster can change only while the job is suspended" in refused.stderr
    cluster.apply(spec__cluster=PLACED, spec__suspend=True)
    cluster.apply(spec__cluster=other, spec__suspend=True)
