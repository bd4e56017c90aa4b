"""Who the operator is to the API server in tests: the service account that the chart makes, with the chart's roles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.helm import rendered

OPERATOR = "tensafe-operator"
_KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def install_roles(plane: ControlPlane, namespace: str = "tensafe-system", **values: Any) -> Path:
    """Apply what the chart says of who may do what, and become the operator: the kubeconfig of its account."""
    plane.kubectl("create", "namespace", namespace, check=False)
    documents = [each for each in rendered(values, namespace=namespace) if each["kind"] in _KINDS]
    plane.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    token = plane.kubectl("-n", namespace, "create", "token", OPERATOR, "--duration=8h").stdout.strip()
    return plane.kubeconfig_of_token(f"{OPERATOR}-{namespace}", token)
