"""Releases that differ, on a real API server: newer CRDs than the operator, and an operator that is upgraded."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tensafe_api.schema import crd
from tests.support.fakes import statuses
from tests.support.job_harness import JobHarness
from tests.support.polling import wait_until
from tests.support.programs.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

CRD = crd.custom_resource_definition(crd.JOBS)


@pytest.fixture
def newer_crd(control_plane: ControlPlane) -> Iterator[None]:
    """A later release of the CRD: with one more field in the spec, and one more in the status."""
    newer = copy.deepcopy(CRD)
    schema = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    schema["spec"]["properties"]["newField"] = {"type": "string"}
    schema["status"]["properties"]["newFigure"] = {"type": "integer"}
    serve(control_plane, newer)
    try:
        yield
    finally:
        serve(control_plane, CRD)


def serve(control_plane: ControlPlane, definition: dict[str, Any]) -> None:
    """Apply a CRD, and wait until the API server serves its fields."""
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=json.dumps(definition))
    wanted = "newField" in json.dumps(definition)

    def served() -> bool:
        done = control_plane.kubectl("explain", "tensafetrainingjobs.spec.newField", check=False)
        return (done.returncode == 0) == wanted

    wait_until(served)


def apply_until_served(cluster: JobHarness, **changes: Any) -> None:
    """Each API server process loads a changed CRD a moment later, and refuses the field until then."""

    def applied() -> bool:
        try:
            cluster.apply(**changes)
        except Exception as error:
            if "newField" not in str(error):
                raise
            return False
        return True

    wait_until(applied)


def test_job_without_the_newer_field_runs_under_newer_crds(newer_crd: None, cluster: JobHarness) -> None:
    cluster.apply()
    cluster.reconcile()
    assert cluster.status()["phase"] == "Starting"
    assert cluster.get("RayJob", "claims-triage-a1")


def test_job_with_a_newer_field_waits_for_the_upgrade_of_the_operator(newer_crd: None, cluster: JobHarness) -> None:
    apply_until_served(cluster, spec__newField="something")
    cluster.reconcile()
    stalled = cluster.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "NewerManifest")
    assert "spec.newField" in stalled["message"] and cluster.status()["phase"] == "Pending"
    cluster.apply()  # without the field: as if the operator knew it
    cluster.reconcile()
    assert cluster.get("RayJob", "claims-triage-a1")


def test_operator_that_was_rolled_back_reads_a_newer_status(newer_crd: None, cluster: JobHarness) -> None:
    cluster.apply()
    cluster.reconcile()
    patch = {"status": {"newFigure": 7}}
    where = ("-n", cluster.namespace, "patch", "tsj", cluster.name, "--subresource=status", "--type=merge")
    cluster.plane.kubectl(*where, "-p", json.dumps(patch))
    assert cluster.status()["newFigure"] == 7
    cluster.set_ray_job_status(statuses.running("claims-triage-a1-x"))
    pod = cluster.create_worker_pod()
    cluster.charge(pod, 5)
    cluster.reconcile()
    assert (cluster.status()["phase"], cluster.status()["privacy"]["stepsCharged"]) == ("Running", 5)


def test_next_attempt_after_an_upgrade_has_the_image_of_the_first(cluster: JobHarness) -> None:
    cluster.start_training()
    assert cluster.status()["resolved"]["image"] == "localhost/trainer:1"
    cluster.image = "localhost/trainer:2"
    cluster.set_ray_job_status(statuses.finished("FAILED"))
    cluster.reconcile()
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "pods", "--all", "--grace-period=0", "--force")
    cluster.now += 400
    cluster.reconcile()
    second = cluster.get("RayJob", "claims-triage-a2")
    assert second is not None
    (group,) = second["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["template"]["spec"]["containers"][0]["image"] == "localhost/trainer:1"


def test_ledger_names_the_model_once(cluster: JobHarness) -> None:
    cluster.apply()
    cluster.reconcile()
    pod = cluster.create_worker_pod()
    cluster.set_ray_job_status(statuses.running("claims-triage-a1-x"))
    cluster.charge(pod, 0, modelWeights="commit:1a2b", chatTemplateDigest="sha256:t")
    cluster.reconcile()
    resolved = cluster.status()["resolved"]
    assert (resolved["modelCommit"], resolved["chatTemplateDigest"]) == ("1a2b", "sha256:t")
    for changes in ({"modelWeights": "commit:2b3c"}, {"chatTemplateDigest": "sha256:u"}):
        with pytest.raises(Exception, match="set once"):
            cluster.charge(pod, 1, **{"modelWeights": "commit:1a2b", "chatTemplateDigest": "sha256:t", **changes})
