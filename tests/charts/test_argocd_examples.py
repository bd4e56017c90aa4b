"""The kustomize examples build valid objects, and a name prefix reaches every name that a job refers to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_api.manifest.text import load_manifest
from tensafe_api.resolve import resolve_job
from tests.support.manifests import MINIMAL, changed
from tests.support.programs.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples" / "kustomize"


def referring(prefix: str) -> dict[str, Any]:
    """Return a job that refers to an object in every field that can."""
    secret, config, claim = f"{prefix}secret", f"{prefix}config", f"{prefix}claim"
    changes = {
        "spec.model.tokenSecret": {"name": secret, "key": "k"},
        "spec.storage": {"secretName": secret},
        "spec.cluster.serviceAccountName": f"{prefix}account",
        "spec.cluster.imagePullSecrets": [{"name": secret}],
        "spec.cluster.env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": config, "key": "k"}}},
        ],
        "spec.cluster.envFrom": [{"secretRef": {"name": secret}}, {"configMapRef": {"name": config}}],
        "spec.cluster.volumes": [
            {"name": "one", "mountPath": "/1", "secret": secret},
            {"name": "two", "mountPath": "/2", "configMap": config},
            {"name": "three", "mountPath": "/3", "pvc": claim},
        ],
    }
    return changed(MINIMAL, changes)


def built(plane: ControlPlane, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the objects that kustomize builds from a folder, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(plane.kubectl("kustomize", str(folder)).stdout)}


@pytest.mark.parametrize(
    ("overlay", "name", "account"),
    [("dry-run", "triage-dry-run", "trainer-dry-run"), ("clinic", "clinic-triage", "clinic-trainer")],
)
def test_overlay_is_a_separate_job(
    overlay: str, name: str, account: str, control_plane: ControlPlane, namespace: str
) -> None:
    folder = EXAMPLES / "overlays" / overlay
    documents = built(control_plane, folder)
    job, plan = resolve_job(load_manifest(json.dumps(documents["TenSafeTrainingJob"])))
    assert plan.steps > 0
    assert (job.metadata.name, job.spec.suspend) == (name, overlay == "dry-run")
    assert documents["ServiceAccount"]["metadata"]["name"] == job.spec.cluster.service_account_name == account
    for document in documents.values():
        document["metadata"]["namespace"] = namespace
        strict = ("--dry-run=server", "--validate=strict")
        control_plane.kubectl("apply", *strict, "-f", "-", text=json.dumps(document))


def test_prefix_reaches_every_name_in_a_job(control_plane: ControlPlane, tmp_path: Path) -> None:
    kinds = {"ServiceAccount": "account", "Secret": "secret", "ConfigMap": "config", "PersistentVolumeClaim": "claim"}
    objects = [{"apiVersion": "v1", "kind": kind, "metadata": {"name": name}} for kind, name in kinds.items()]
    kustomization = {"resources": ["all.yaml"], "configurations": ["tensafe.yaml"], "namePrefix": "x-"}
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all([referring(""), *objects]))
    (tmp_path / "tensafe.yaml").write_text((EXAMPLES / "base" / "tensafe.yaml").read_text())
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    job = built(control_plane, tmp_path)["TenSafeTrainingJob"]
    assert job["spec"] == referring("x-")["spec"]
