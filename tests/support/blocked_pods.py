"""Observations of a job whose pods wait."""

from __future__ import annotations

from typing import Any

from tensafe_operator.decision.observation import ClusterWarning, Observed
from tests.support.fake_cluster import FakeCluster

UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}
UNSIGNED = "image pull failed for registry/none:1 because the signature validation failed: no signatures found"


def pod(**status: Any) -> dict[str, Any]:
    """A worker with this status."""
    return {"metadata": {"name": "w-1", "labels": {"ray.io/node-type": "worker"}}, "status": status}


def waiting_pod(reason: str, message: str = "") -> dict[str, Any]:
    """A worker whose container waits for this reason."""
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(containerStatuses=[{"name": "ray", "image": "registry/none:1", "state": state}])


def observe(*pods: dict[str, Any], warnings: tuple[ClusterWarning, ...] = (), kuberay: bool = True) -> Observed:
    """A job with these pods, as the operator observes it."""
    return Observed(FakeCluster.with_job().job, pods=pods, warnings=warnings, kuberay=kuberay)
