"""The operator's service account and roles in tests, as the chart defines them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.programs.controlplane import ControlPlane
from tests.support.programs.helm import render_chart

OPERATOR = "tensafe-operator"
_KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def install_roles(plane: ControlPlane, namespace: str = "tensafe-system", **values: Any) -> Path:
    """Apply the chart's RBAC objects; return a kubeconfig of the operator's service account."""
    plane.kubectl("create", "namespace", namespace, check=False)
    documents = [each for each in render_chart(values, namespace=namespace) if each["kind"] in _KINDS]
    plane.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    token = plane.kubectl("-n", namespace, "create", "token", OPERATOR, "--duration=8h").stdout.strip()
    return plane.kubeconfig_of_token(f"{OPERATOR}-{namespace}", token)
