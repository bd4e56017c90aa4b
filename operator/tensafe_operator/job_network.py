"""What the pods of jobs may connect to, as an administrator sets it in the chart's value `jobs.networkPolicy`."""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Port = Annotated[int, Field(ge=1, le=65535)]
_NAMESPACE = "kubernetes.io/metadata.name"


def _network(text: str) -> str:
    ipaddress.ip_network(text)
    return text


def _peer(peer: dict[str, Any]) -> dict[str, Any]:
    """A peer. The API server drops fields that it does not know, so that a misspelt one would allow more."""
    _only(peer, "podSelector", "namespaceSelector", "ipBlock")
    return peer


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    """A rule without a field that the API server would drop."""
    _only(rule, "to", "ports")
    for port in rule.get("ports", ()):
        _only(port, "protocol", "port", "endPort")
    for peer in rule.get("to", ()):
        _peer(peer)
    return rule


def _only(part: dict[str, Any], *known: str) -> None:
    if unknown := sorted(set(part) - set(known)):
        raise ValueError(f"unknown field {unknown[0]}, expected one of {', '.join(known)}")


_Peer = Annotated[dict[str, Any], AfterValidator(_peer)]
_Rule = Annotated[dict[str, Any], AfterValidator(_rule)]


class MetadataService(StrEnum):
    """A service of a cloud that gives pods credentials."""

    EKS_POD_IDENTITY = "EKSPodIdentity"
    """Credentials of the pod's own service account."""
    GKE_WORKLOAD_IDENTITY = "GKEWorkloadIdentity"
    """Credentials of the pod's own service account, on node pools with the GKE metadata server."""
    NODE = "Node"
    """The metadata of the node. Many clouds give each pod the credentials of its node there."""

    @property
    def endpoints(self) -> tuple[tuple[str, int], ...]:
        """Addresses and TCP ports."""
        return _ENDPOINTS[self]


_ENDPOINTS = {
    MetadataService.EKS_POD_IDENTITY: (("169.254.170.23", 80), ("fd00:ec2::23", 80)),
    MetadataService.GKE_WORKLOAD_IDENTITY: (("169.254.169.252", 988), ("169.254.169.254", 80)),
    MetadataService.NODE: (("169.254.169.254", 80), ("169.254.170.2", 80), ("fd00:ec2::254", 80)),
}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Dns(_Part):
    """Where the pods of jobs resolve names.

    Attributes:
        to: NetworkPolicy peers; empty: any host.
        ports: UDP and TCP ports.
    """

    to: tuple[_Peer, ...] = (
        {"namespaceSelector": {"matchExpressions": [
            {"key": _NAMESPACE, "operator": "In", "values": ["kube-system", "openshift-dns"]}
        ]}},
        {"ipBlock": {"cidr": "169.254.20.10/32"}},
    )  # fmt: skip
    ports: tuple[Port, ...] = (53, 5353)


class JobNetwork(_Part):
    """What the pods of jobs may connect to, besides the pods of their own job.

    Attributes:
        enabled: whether jobs get a NetworkPolicy.
        kuberay_pods: labels of KubeRay's pods, which may reach the head's HTTP port; empty: all pods of its namespace.
        dns: the cluster's DNS. By default that of most clusters, of OpenShift, and NodeLocal DNSCache.
        api_server_ports: TCP ports of the API server.
        api_server_cidrs: networks of the API server; empty: any host.
        metadata: services of the cloud that give credentials.
        egress: more rules, in the form of NetworkPolicy. By default TCP 443 of any host: object stores and model hubs.
    """

    enabled: bool = True
    kuberay_pods: dict[str, str] = Field(default={"app.kubernetes.io/component": "kuberay-operator"})
    dns: Dns = Dns()
    api_server_ports: tuple[Port, ...] = (443, 6443)
    api_server_cidrs: tuple[Annotated[str, AfterValidator(_network)], ...] = Field(default=(), alias="apiServerCIDRs")
    metadata: tuple[MetadataService, ...] = (MetadataService.EKS_POD_IDENTITY,)
    egress: tuple[_Rule, ...] = ({"ports": [{"protocol": "TCP", "port": 443}]},)
