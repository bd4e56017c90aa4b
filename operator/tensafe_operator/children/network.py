"""Builds the NetworkPolicy of a job's pods.

Ingress: from the job's own pods, and from KubeRay to the head's dashboard, through which it submits the job. Egress: to
the job's own pods, DNS, HTTPS (object storage, model hubs, the API server), the credential endpoints of the clouds, and
the networks in the operator's settings.

If the cluster's network plugin does not enforce NetworkPolicies, the policy isolates nothing. The documentation warns
of that.
"""

from __future__ import annotations

from typing import Any

from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator import names
from tensafe_operator.children import Manifest, metadata
from tensafe_operator.settings import Settings

DASHBOARD_PORT = 8265
_CREDENTIAL_ENDPOINTS = ("169.254.169.254/32", "169.254.170.2/32", "169.254.170.23/32")


def policy(job: TenSafeTrainingJob, settings: Settings) -> Manifest:
    """The NetworkPolicy of all pods of a job."""
    pods = {"matchLabels": {names.JOB_UID: job.metadata.uid}}
    own: list[dict[str, Any]] = [{"podSelector": pods}]
    kuberay = {"matchLabels": {"kubernetes.io/metadata.name": settings.kuberay_namespace}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, job.metadata.name),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": own},
                {"from": [{"namespaceSelector": kuberay}], "ports": [_tcp(DASHBOARD_PORT)]},
            ],
            "egress": [
                {"to": own},
                {"ports": [{"protocol": "UDP", "port": 53}, _tcp(53)]},
                {"ports": [_tcp(443), _tcp(6443)]},
                {"to": [{"ipBlock": {"cidr": cidr}} for cidr in _CREDENTIAL_ENDPOINTS], "ports": [_tcp(80)]},
                *({"to": [{"ipBlock": {"cidr": cidr}}]} for cidr in settings.egress_cidrs),
            ],
        },
    }


def _tcp(port: int) -> dict[str, Any]:
    return {"protocol": "TCP", "port": port}
