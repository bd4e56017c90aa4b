"""Why does nothing run? What stands in the way of an attempt that starts, in the words of whoever refuses.

The first thing that a person would have to mend is told: what KubeRay needs, what the API server refuses, then what
the pods wait for. The job goes on by itself once it is mended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tensafe_api.reasons import Reason
from tensafe_operator.plan.observed import ClusterWarning, Object, Observed

_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CONFIG = "CreateContainerConfigError"
_MISSING = re.compile(
    r'(secret|configmap)s? "[^"]*" not found|find key .* in (Secret|ConfigMap)|references non-existent'
)
"""How a kubelet says that a Secret or ConfigMap is not there, or lacks a key: for a variable, and for a volume."""
_ROOT = re.compile("runAsNonRoot|non-root")
_QUOTA = re.compile("exceeded quota|failed quota")
"""How the API server says that a quota has no room, or that it counts what a container does not name."""
_NOT_MADE = ("FailedToCreateHeadPod", "FailedToCreateWorkerPod")
_LONGEST = 400


@dataclass(frozen=True)
class Obstacle:
    """What stands in the way: the reason, and a sentence that names the object."""

    reason: Reason
    message: str


def obstacle(seen: Observed) -> Obstacle | None:
    """What stands in the way of the pods, or None."""
    if not seen.kuberay:
        return Obstacle(Reason.KUBERAY_MISSING, Reason.KUBERAY_MISSING.sentence)
    return next(_obstacles(seen), None)


def ready(pods: Iterable[Object]) -> int:
    """How many workers are ready."""
    workers = (pod for pod in pods if (pod["metadata"].get("labels") or {}).get("ray.io/node-type") == "worker")
    return sum(_condition(pod, "Ready") == "True" for pod in workers)


def _obstacles(seen: Observed) -> Iterator[Obstacle]:
    for warned in seen.warnings:
        yield from _of_warning(warned)
    for pod in seen.pods:
        yield from _of_pod(pod)


def _of_warning(warned: ClusterWarning) -> Iterator[Obstacle]:
    place = f"{warned.kind} {warned.name}"
    if warned.reason == "FailedMount" and _MISSING.search(warned.message):
        yield Obstacle(Reason.SECRET_MISSING, f"{place}: {warned.message[:_LONGEST]}")
    elif _QUOTA.search(warned.message):
        yield Obstacle(Reason.QUOTA_EXCEEDED, f"{place}: {warned.message[:_LONGEST]}")
    elif warned.reason == Reason.NAME_TAKEN:
        yield Obstacle(Reason.NAME_TAKEN, f"{place}: {warned.message[:_LONGEST]}")
    elif warned.reason == Reason.FORBIDDEN or warned.reason in _NOT_MADE:
        yield Obstacle(Reason.FORBIDDEN, f"{place}: {warned.message[:_LONGEST]}")


def _of_pod(pod: Object) -> Iterator[Obstacle]:
    name = f"pod {pod['metadata']['name']}"
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            yield Obstacle(Reason.UNSCHEDULABLE, f"{name}: {str(condition.get('message'))[:_LONGEST]}")
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        said, message = waiting.get("reason"), str(waiting.get("message") or "")[:_LONGEST]
        if said in _PULL:
            yield Obstacle(Reason.IMAGE_PULL_FAILED, f"{name}: {container.get('image')}: {said}")
        elif said == _CONFIG:
            yield Obstacle(_of_config(message), f"{name}: {message}")
        elif said == "CrashLoopBackOff":
            yield Obstacle(Reason.CRASH_LOOP, f"{name}: container {container.get('name')} ends again and again")


def _of_config(message: str) -> Reason:
    """Why a container cannot be made as the pod describes it."""
    if _MISSING.search(message):
        return Reason.SECRET_MISSING
    return Reason.ROOT_IMAGE if _ROOT.search(message) else Reason.CONTAINER_REFUSED


def _condition(pod: Object, kind: str) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((str(each.get("status")) for each in conditions if each.get("type") == kind), "Unknown")
