"""Who the operator is to the API server in tests: a service account with the least that it needs, and a kubeconfig."""

from __future__ import annotations

import json
from pathlib import Path

from controlplane import ControlPlane

OPERATOR_RULES = [
    {"apiGroups": ["tensafe.io"], "resources": ["tensafetrainingjobs"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["tensafe.io"], "resources": ["tensafetrainingjobs/status"], "verbs": ["get", "patch"]},
    {"apiGroups": ["tensafe.io"], "resources": ["tensafetrainingjobs/finalizers"], "verbs": ["update"]},
    {"apiGroups": ["tensafe.io"], "resources": ["privacyledgers"], "verbs": ["get", "list", "watch", "create"]},
    {"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create", "get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": ["apiextensions.k8s.io"],
        "resources": ["customresourcedefinitions"],
        "verbs": ["get", "list", "watch"],
    },
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["get", "list", "watch", "create"]},
    {"apiGroups": [""], "resources": ["configmaps", "serviceaccounts"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["get", "create"]},
    {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["rolebindings"], "verbs": ["get", "create"]},
    {
        "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["clusterroles"],
        "resourceNames": ["tensafe-trainer"],
        "verbs": ["bind"],
    },
]
TRAINER_RULES = [
    {"apiGroups": ["tensafe.io"], "resources": ["privacyledgers", "tensafetrainingjobs"], "verbs": ["get"]},
    {"apiGroups": ["tensafe.io"], "resources": ["privacyledgers/status"], "verbs": ["get", "update"]},
]


def install_roles(plane: ControlPlane) -> Path:
    """Make both ClusterRoles and the operator's account; the kubeconfig of that account."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    subject = {"kind": "ServiceAccount", "name": "tensafe-operator", "namespace": "default"}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "tensafe-operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tensafe-operator"},
        "subjects": [subject],
    }
    documents = [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "tensafe-operator", "namespace": "default"},
        },
        {**role, "metadata": {"name": "tensafe-operator"}, "rules": OPERATOR_RULES},
        {**role, "metadata": {"name": "tensafe-trainer"}, "rules": TRAINER_RULES},
        binding,
    ]
    for document in documents:
        plane.kubectl("apply", "-f", "-", text=json.dumps(document))
    token = plane.kubectl("-n", "default", "create", "token", "tensafe-operator").stdout.strip()
    return plane.kubeconfig_of_token("tensafe-operator", token)
