"""Builds the NetworkPolicy of a job's pods.

Ingress: from KubeRay to the head's HTTP port, through which it submits the job, and from the job's own pods to all
other ports. Egress: to the job's own pods, and to what the administrator allows (`job_network`).

If the cluster's network plugin does not enforce NetworkPolicies, the policy isolates nothing. The documentation warns
of that.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Any

from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_operator import names
from tensafe_operator.children import Manifest, metadata
from tensafe_operator.settings import Settings

DASHBOARD_PORT = 8265


def policy(job: TenSafeTrainingJob, settings: Settings) -> Manifest | None:
    """The NetworkPolicy of all pods of a job; None if jobs get none."""
    if not settings.job_network.enabled:
        return None
    pods = {"matchLabels": {names.JOB_UID: job.metadata.uid}}
    own: list[dict[str, Any]] = [{"podSelector": pods}]
    kuberay: dict[str, Any] = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.kuberay_namespace}}
    }
    if labels := settings.job_network.kuberay_pods:
        kuberay["podSelector"] = {"matchLabels": dict(labels)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, job.metadata.name),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": own, "ports": _all_ports_but(DASHBOARD_PORT)},
                {"from": [kuberay], "ports": _ports(DASHBOARD_PORT)},
            ],
            "egress": [{"to": own}, *_egress(settings)],
        },
    }


def _egress(settings: Settings) -> Iterator[dict[str, Any]]:
    allowed = settings.job_network
    if allowed.dns.ports:
        ports = [*_ports(*allowed.dns.ports, protocol="UDP"), *_ports(*allowed.dns.ports)]
        yield {**_to(allowed.dns.to), "ports": ports}
    if allowed.api_server_ports:
        yield {**_to(map(_block, allowed.api_server_cidrs)), "ports": _ports(*allowed.api_server_ports)}
    for service in allowed.metadata:
        for address, port in service.endpoints:
            yield {"to": [_block(str(ipaddress.ip_network(address)))], "ports": _ports(port)}
    yield from ({"to": [_block(cidr)]} for cidr in settings.egress_cidrs)
    yield from (dict(rule) for rule in allowed.egress)


def _to(peers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The destinations of a rule. A rule without any allows all."""
    found = list(peers)
    return {"to": found} if found else {}


def _block(cidr: str) -> dict[str, Any]:
    return {"ipBlock": {"cidr": cidr}}


def _ports(*ports: int, protocol: str = "TCP") -> list[dict[str, Any]]:
    return [{"protocol": protocol, "port": port} for port in ports]


def _all_ports_but(port: int) -> list[dict[str, Any]]:
    """All UDP ports, and all TCP ports but this one."""
    tcp = ((1, port - 1), (port + 1, 65535))
    ranges = [{"protocol": "TCP", "port": first, "endPort": last} for first, last in tcp]
    return [*ranges, {"protocol": "UDP"}]
