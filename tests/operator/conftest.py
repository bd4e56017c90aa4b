"""A job on a control plane with KubeRay's CRDs, reconciled with the rights of the chart's roles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fakes.kuberay import install_kuberay_crds
from tests.support.job_harness import JobHarness, Refuse
from tests.support.operator_harness import OperatorHarness
from tests.support.programs.controlplane import ControlPlane
from tests.support.roles import install_roles


@pytest.fixture(scope="session")
def kubeconfig(control_plane: ControlPlane) -> Path:
    """The operator's kubeconfig file."""
    install_kuberay_crds(control_plane)
    return install_roles(control_plane)


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str, kubeconfig: Path) -> JobHarness:
    return JobHarness(control_plane, namespace, kubeconfig)


@pytest.fixture
def unstarted(tmp_path: Path) -> Iterator[OperatorHarness]:
    """A control plane that is not started yet."""
    made = OperatorHarness(tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorHarness]:
    """A control plane that has our CRDs, KubeRay's and the chart's roles, and no job. Its servers are stopped."""
    made = OperatorHarness(tmp_path_factory.mktemp("saved"))
    try:
        made.start()
        made.plane.save()
        yield made
    finally:
        made.plane.stop()


@pytest.fixture
def plane(saved: OperatorHarness, tmp_path: Path) -> Iterator[OperatorHarness]:
    """A control plane for this test alone, which may kill its servers and start operators as processes."""
    made = saved.restored(tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def platform_team(control_plane: ControlPlane, namespace: str) -> Iterator[Refuse]:
    """Lets an admission policy refuse what the operator does with a kind of object in the namespace."""
    made: list[str] = []

    def refuse(operation: str, group: str, resource: str, unless: str = "false") -> None:
        name = f"{namespace}-{operation.lower()}-{resource.replace('/', '-')}"
        rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": [operation], "resources": [resource]}
        expression = f"!request.userInfo.username.endsWith(':tensafe-operator') || ({unless})"
        selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        policy = {
            "kind": "ValidatingAdmissionPolicy",
            "spec": {
                "matchConstraints": {"resourceRules": [rule], "namespaceSelector": selector},
                "validations": [{"expression": expression, "message": "the platform team owns this object"}],
            },
        }
        binding = {
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        }
        common = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
        items = [{**common, **each} for each in (policy, binding)]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        control_plane.kubectl("apply", "-f", "-", text=text)
        made.append(text)

    yield refuse
    for text in made:
        control_plane.kubectl("delete", "-f", "-", text=text)
