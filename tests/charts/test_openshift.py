"""OpenShift admits the pods of the chart, by the rules of the SCC `restricted-v2` on a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.chart_values import named
from tests.support.openshift import restricted_v2
from tests.support.polling import wait_until
from tests.support.programs.controlplane import ControlPlane
from tests.support.programs.helm import render_chart

pytestmark = pytest.mark.cluster


def test_openshift_admits_the_operator_and_the_pod_of_helm_test(control_plane: ControlPlane, namespace: str) -> None:
    policies = {"apiVersion": "v1", "kind": "List", "items": restricted_v2(namespace)}
    control_plane.kubectl("apply", "-f", "-", text=json.dumps(policies))

    def refusal(spec: dict[str, Any]) -> str:
        metadata = {"generateName": "p-", "namespace": namespace}
        spec = {**spec, "serviceAccountName": "default"}  # the release's own would have to exist
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        create = ("create", "--dry-run=server", "-f", "-")
        return control_plane.kubectl(*create, text=json.dumps(pod), check=False).stderr

    documents = render_chart(tests=True)
    operator = named(documents, "Deployment")["spec"]["template"]["spec"]
    (tested,) = (each["spec"] for each in documents if each["kind"] == "Pod")
    root = {**operator, "securityContext": {"runAsUser": 0}}
    wait_until(lambda: "SCC: runAsUser" in refusal(root), 20, lambda: refusal(root))
    assert [refusal(spec) for spec in (operator, tested)] == ["", ""]
