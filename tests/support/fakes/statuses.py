"""The statuses that KubeRay, the kubelet and the trainer write, as plain objects. No API server is needed here.

The values are those of KubeRay 1.6 (`rayjob_types.go`: JobDeploymentStatus, JobStatus) and of core/v1 Pod.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


def initializing(ray_cluster: str, start_time: str) -> Object:
    """The first status of a RayJob: KubeRay has named its RayCluster."""
    return {"jobDeploymentStatus": "Initializing", "rayClusterName": ray_cluster, "startTime": start_time}


def running(ray_cluster: str, start_time: str | None = None) -> Object:
    """The status of a RayJob while its RayCluster's pods run.

    Args:
        start_time: start of the Ray job within the RayCluster; None: Ray has not reported one yet.
    """
    status: Object = {"jobDeploymentStatus": "Running", "rayClusterName": ray_cluster}
    return status if start_time is None else {**status, "rayJobInfo": {"startTime": start_time}}


def finished(job_status: str, message: str | None = None) -> Object:
    """The status of a RayJob whose entrypoint has exited.

    Args:
        job_status: SUCCEEDED, FAILED or STOPPED, as Ray reports it.
        message: Ray's sentence on the exit; None leaves the field out.
    """
    status: Object = {"jobStatus": job_status, "jobDeploymentStatus": "Complete"}
    if job_status == "FAILED":
        status |= {"jobDeploymentStatus": "Failed", "reason": "AppFailed"}
    return status if message is None else {**status, "message": message}


def ready_pod(start_time: str | None = None) -> Object:
    """The status that the kubelet writes once all containers of a pod are ready.

    Args:
        start_time: start of the pod and time of the transition; None leaves both out.
    """
    ready: Object = {"type": "Ready", "status": "True"}
    if start_time is None:
        return {"phase": "Running", "conditions": [ready]}
    return {
        "phase": "Running",
        "conditions": [{**ready, "lastTransitionTime": start_time}],
        "startTime": start_time,
    }


def charged(steps: int, pod_uid: str, *, length: int, last_update_time: str | None = None, **more: Any) -> Object:
    """The ledger's status after rank 0 of the first attempt has charged `steps` steps in all.

    Args:
        pod_uid: UID of the pod that acquired the ledger.
        length: number of the ledger's entries so far.
        last_update_time: time of the last step; None leaves the field out.
        more: further fields of the status, such as `outcome`.
    """
    progress: Object = {"step": steps}
    if last_update_time is not None:
        progress["lastUpdateTime"] = last_update_time
    return {
        "attempt": 1,
        "charges": [{"attempt": 1, "steps": steps, "incarnation": 1, "podUID": pod_uid}],
        "chargedThrough": steps,
        "length": length,
        "head": "0" * 64,
        "progress": progress,
        **more,
    }


def now() -> str:
    """The time, in the format of the Kubernetes API."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
