"""Pods of the open attempt that fail, on the cluster in memory, and what the job says of them."""

from __future__ import annotations

from typing import Any

from tensafe_api.timestamps import format_time
from tests.support.fake_cluster import FakeCluster, FakeOperator, condition, started_job
from tests.support.fakes import statuses

ONE_WORKER = {"spec__cluster__workers": 1}


NAME, HEAD = "claims-triage-a1", "claims-triage-a1-head"


def starting_job() -> tuple[FakeCluster, FakeOperator]:
    cluster, operator = started_job(**ONE_WORKER)
    cluster.start_pods()
    cluster.ray_jobs[NAME]["status"] = statuses.initializing("claims-triage-a1-x", format_time(cluster.now))
    return cluster, operator


def failed(cluster: FakeCluster, seconds: float = 1.0, *, phase: str = "Failed", **more: Any) -> dict[str, Any]:
    """The status of a pod whose container ran for so long."""
    ended = {
        "exitCode": 127,
        "reason": "Error",
        "startedAt": format_time(cluster.now - seconds),
        "finishedAt": format_time(cluster.now),
    }
    return {"phase": phase, "containerStatuses": [{"name": "ray-head", "state": {"terminated": ended}}], **more}


NO_BASH = 'exec: "bash": executable file not found in $PATH'


def unstarted(cluster: FakeCluster, started: str = "1970-01-01T00:00:00Z", **more: Any) -> dict[str, Any]:
    """The status of a pod whose container a node could not start, as the kubelet takes it over from containerd."""
    ended = {"exitCode": 128, "reason": "StartError", "startedAt": started, "message": NO_BASH}
    ended |= {"finishedAt": format_time(cluster.now), **more}
    return {"phase": "Failed", "containerStatuses": [{"name": "ray-head", "state": {"terminated": ended}}]}


def replace_head(cluster: FakeCluster, name: str, status: dict[str, Any]) -> None:
    (old,) = (each for each, pod in cluster.pods.items() if pod["metadata"]["labels"]["ray.io/node-type"] == "head")
    pod = cluster.pods.pop(old)
    metadata = {**pod["metadata"], "name": name, "creationTimestamp": format_time(cluster.now)}
    cluster.pods[name] = {"metadata": metadata, "status": status}


def stalled(cluster: FakeCluster) -> tuple[str, str]:
    found = condition(cluster, "Stalled")
    return found["status"], found["reason"]
