"""Objects that are nested too deeply for most readers, or that kopf would write: those of one user do not end or delay
the operator of a cluster.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.fixtures.manifests import MINIMAL, changed
from e2e.platform.fixtures.operator_harness import OperatorHarness

pytestmark = pytest.mark.cluster

DEPTH = 3000
DEEP_MAPPING, DEEP_FIELDS = '{"a":' * DEPTH + "1" + "}" * DEPTH, '{"f:a":' * DEPTH + "{}" + "}" * DEPTH
LABELLED = {"metadata": {"name": "deep", "labels": {"tensafe.io/job-uid": "x"}}}
ABOUT = {"kind": "Pod", "name": "x", "namespace": "clinic"}
OBJECTS: dict[str, dict[str, Any]] = {
    "/api/v1/namespaces/clinic/events": {
        "kind": "Event",
        "metadata": {"name": "deep"},
        "type": "Warning",
        "reason": "x",
        "message": "x",
        "involvedObject": ABOUT,
    },
    "/api/v1/namespaces/clinic/pods": {
        "kind": "Pod",
        **LABELLED,
        "spec": {"containers": [{"name": "a", "image": "a"}], "automountServiceAccountToken": False},
    },
    "/apis/networking.k8s.io/v1/namespaces/clinic/networkpolicies": {
        "kind": "NetworkPolicy",
        **LABELLED,
        "spec": {"podSelector": {}},
    },
}
"""Objects that the role `edit` may create, by the address of their kind. None is of this project."""


def create(plane: OperatorHarness, path: str, text: str, tmp_path: Path) -> None:
    """Create an object from JSON that kubectl does not read."""
    file = tmp_path / "object.json"
    file.write_text(text)
    plane.plane.kubectl("create", "--raw", path, "-f", str(file))


def with_deep_managed_fields(path: str, document: dict[str, Any]) -> str:
    version = "v1" if path.startswith("/api/") else "/".join(path.split("/")[2:4])
    managed = {
        "apiVersion": version,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {"f:x": "DEEP"}}},
        "manager": "x",
        "operation": "Update",
        "time": "2026-01-01T00:00:00Z",
    }
    metadata = {**document["metadata"], "managedFields": [managed]}
    return json.dumps({"apiVersion": version, **document, "metadata": metadata}).replace('"DEEP"', DEEP_FIELDS)


def test_operator_survives_objects_of_any_depth_while_it_runs_and_when_it_starts(
    plane: OperatorHarness, tmp_path: Path
) -> None:
    operator = plane.operator()
    plane.wait_until(lambda: operator.leading)
    for path, document in OBJECTS.items():
        create(plane, path, with_deep_managed_fields(path, document), tmp_path)
    job = changed(MINIMAL, {"metadata.name": "nested", "spec.cluster.affinity": "DEEP"})
    jobs = "/apis/tensafe.io/v1alpha1/namespaces/clinic/tensafetrainingjobs"
    create(plane, jobs, json.dumps(job).replace('"DEEP"', DEEP_MAPPING), tmp_path)
    plane.apply("one")
    plane.wait_until(lambda: plane.started("one"))

    operator.kill()
    again = plane.operator()
    plane.apply("two")
    plane.wait_until(lambda: plane.started("two"))
    assert again.leading
    assert "recursion" not in plane.logs()


def test_operator_writes_no_object_that_has_the_finalizer_of_kopf(plane: OperatorHarness, tmp_path: Path) -> None:
    """kopf tried to remove it for a minute from each object, and kept the whole object meanwhile."""
    operator = plane.operator()
    plane.wait_until(lambda: operator.leading)
    for path, document in OBJECTS.items():
        held = {"finalizers": ["kopf.zalando.org/KopfFinalizerMarker"]}
        version = "v1" if path.startswith("/api/") else "/".join(path.split("/")[2:4])
        made = {"apiVersion": version, **document, "metadata": {**document["metadata"], **held}}
        create(plane, path, json.dumps(made), tmp_path)
    plane.apply("one")
    plane.wait_until(lambda: plane.started("one"))
    assert plane.refused() == []
    found = plane.get("networkpolicy", "deep")
    assert found is not None and found["metadata"]["finalizers"] == ["kopf.zalando.org/KopfFinalizerMarker"]
    assert "deep" not in plane.logs()
