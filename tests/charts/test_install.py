"""Install, upgrade, roll back and uninstall the chart on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chart_values import EVERYTHING, named
from tests.support.ledger_objects import LedgerObject, charged_status, make_pod
from tests.support.manifests import MINIMAL, changed
from tests.support.polling import wait_until
from tests.support.programs.controlplane import ControlPlane
from tests.support.programs.helm import CHART, helm, render_chart

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]


class Release:
    """The chart, installed on its own control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def helm(self, *arguments: str, check: bool = True) -> str:
        done = helm(*arguments, "--namespace", "tensafe-system", kubeconfig=self.plane.admin, check=check)
        return done.stderr if done.returncode else done.stdout

    def get(self, kind: str, name: str, namespace: str = "tensafe-system") -> dict[str, Any] | None:
        done = self.plane.kubectl("-n", namespace, "get", kind, name, "-o", "json", check=False)
        return None if done.returncode else dict(json.loads(done.stdout))

    def replicas(self) -> int:
        found = self.get("deployment", "tensafe-operator")
        assert found is not None
        return int(found["spec"]["replicas"])


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Release]:
    plane = ControlPlane(tmp_path / "plane")
    try:
        plane.start()
        yield Release(plane)
    finally:
        plane.stop()


def test_install_upgrade_rollback_and_uninstall_keep_jobs_and_ledgers(release: Release) -> None:
    plane = release.plane
    notes = release.helm("install", "tensafe", str(CHART), "--create-namespace")
    assert "KubeRay was not found" in notes and "No job is limited" not in notes
    plane.wait_for_crds()
    plane.kubectl("create", "namespace", "clinic")
    plane.kubectl("apply", "-f", "-", text=json.dumps(changed(MINIMAL, {"metadata.namespace": "clinic"})))
    ledger = LedgerObject(plane, "clinic")
    pod = make_pod(plane, "clinic", "trainer")
    assert ledger.write(charged_status(pod), pod) == ""
    before = ledger.get()

    values = ("--set", "replicas=1,limits.trustRemoteCode=false", "--set-string", "limits.maxEpsilon=8")
    notes = release.helm("upgrade", "tensafe", str(CHART), *values)
    assert "these values have no effect: limits.maxEpsilon, limits.trustRemoteCode." in notes
    assert (release.replicas(), release.get("pdb", "tensafe-operator")) == (1, None)
    release.helm("rollback", "tensafe", "1")
    assert release.replicas() == 2
    assert release.get("pdb", "tensafe-operator") is not None

    release.helm("uninstall", "tensafe")
    assert release.get("deployment", "tensafe-operator") is None
    assert release.get("serviceaccount", "tensafe-operator") is None
    assert release.get("clusterrole", "tensafe-operator-tensafe-system") is None
    assert release.get("clusterrole", "tensafe-trainer") is not None, "running jobs must be able to continue"
    assert release.get("tsj", "claims-triage", "clinic") is not None
    assert ledger.get() == before
    more = charged_status(
        pod, stepsRecharged=0, charges=[{**before["status"]["charges"][0], "steps": 12}], chargedThrough=12, length=3
    )
    assert ledger.write(more, pod) == "", "a running job continues to charge"
    assert "only the service account" in ledger.write(more, None), "the policy applies without the operator"

    release.helm("install", "tensafe", str(CHART))
    assert release.get("deployment", "tensafe-operator") is not None
    assert ledger.get()["status"] == more


@pytest.mark.parametrize(("plural", "what"), [("privacyledgers", "privacy ledger"), ("tensafetrainingjobs", "job")])
def test_crd_is_not_deleted_by_mistake(release: Release, plural: str, what: str) -> None:
    plane = release.plane
    plane.kubectl("apply", "-f", str(ROOT / "crds"))
    refused = f"deleting this CRD would delete every {what} of the cluster"
    kind = f"crd/{plural}.tensafe.io"
    delete = ("delete", kind, "--wait=false")

    def dry_run() -> str:
        return plane.kubectl(*delete, "--dry-run=server", check=False).stderr

    wait_until(lambda: refused in dry_run())  # a new policy takes effect after a moment
    assert refused in plane.kubectl(*delete, check=False).stderr
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?labelSelector=team%3Dml"
    plane.kubectl("label", kind, "team=ml")
    assert refused in plane.kubectl("delete", "--raw", path, check=False).stderr
    uid = plane.kubectl("get", kind, "-o", "jsonpath={.metadata.uid}").stdout
    plane.kubectl("annotate", kind, f"tensafe.io/forget={uid}")
    plane.kubectl(*delete)


def test_helm_takes_ownership_of_crds_after_a_plain_apply(release: Release) -> None:
    release.plane.kubectl("apply", "-f", str(ROOT / "crds"))
    install = ("install", "tensafe", str(CHART), "--create-namespace")
    assert "invalid ownership metadata" in release.helm(*install, check=False)
    assert "TenSafe operator" in release.helm(*install, "--take-ownership")
    notes = release.helm("upgrade", "tensafe", str(CHART), "--set", "crds.enabled=false")
    assert "The cluster has the CRDs already." in notes, "older ones must not be applied by mistake"


def test_api_server_accepts_every_document_under_the_restricted_pod_standard(release: Release) -> None:
    plane = release.plane
    plane.kubectl("create", "namespace", "tensafe-system")
    plane.kubectl("label", "namespace", "tensafe-system", "pod-security.kubernetes.io/enforce=restricted")
    documents = [each for each in render_chart(EVERYTHING) if "monitoring.coreos.com" not in each["apiVersion"]]
    plane.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    template = named(documents, "Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]}
    pod["metadata"] = {**template["metadata"], "name": "operator", "namespace": "tensafe-system"}
    plane.kubectl("create", "-f", "-", text=json.dumps(pod))
