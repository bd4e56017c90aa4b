"""Outdated: leave out warnings whose cause is over.

The last warning about an object stays known for as long as the object, and the API server keeps an Event for an hour.
After a user has fixed its cause, a warning would report a problem that is over, and hide what the job waits for now.
KubeRay reports no success, so what it has created since shows it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from tensafe_api.timestamps import parse_time
from tensafe_operator import names
from tensafe_operator.plan.observed import ClusterWarning, Object, Observed
from tensafe_operator.plan.parsing import has_condition, has_ended

REFUSED = ("FailedToCreateHeadPod", "FailedToCreateWorkerPod", "FailedToCreateRayCluster", "FailedToCreateService")
"""Reasons of KubeRay's Events about objects that the API server refuses to create."""
_NOT_IN_CONFLICT = (("RayJob", "FailedToCreateRayCluster"), ("RayJob", "FailedToCreateService"))
"""Those about objects whose names no other object can have: KubeRay looks the object up by its name first, and takes it
over. It leaves the name of a pod to the API server, except that of a head with `ENABLE_DETERMINISTIC_HEAD_POD_NAME`,
which may be taken.
"""
_CONFLICT = re.compile(r'[^"]*[,:] [a-z.]+ "[^"]+" already exists')
"""How KubeRay quotes the API server's refusal of a taken name. A denial by a webhook or a policy may have these words
too, after a name in quotes.
"""


def current_warnings(observed: Observed) -> list[ClusterWarning]:
    """Return the warnings about what may still keep the open attempt from running."""
    known = _Known(observed)
    return [warning for warning in observed.warnings if not known.is_outdated(warning)]


class _Known:
    """What is known about the objects of a job. There may be a thousand pods and two thousand warnings about them."""

    def __init__(self, observed: Observed) -> None:
        self._job = observed.job
        of_attempt = pods_of_open_attempt(observed)
        pods = [pod for pod in of_attempt if not _is_replaced(pod)]
        self._pods = len(pods)
        self._workers = sum(map(_is_worker, pods))
        self._last_head = _last_creation(pod for pod in of_attempt if not _is_worker(pod))
        self._last_worker = _last_creation(pod for pod in of_attempt if _is_worker(pod))
        self._workers_with_lost = sum(map(_is_worker, of_attempt))
        self._started_pods = {pod["metadata"]["name"] for pod in observed.pods if not _is_pending(pod)}
        self._submitted = {each["metadata"]["name"] for each in observed.ray_jobs if is_submitted(each)}
        self._clusters = {(each.get("status") or {}).get("rayClusterName") for each in observed.ray_jobs} - {None, ""}
        ended = [each for each in _attempts(observed) if each.get("endTime")]
        self._ended = {each.get(field) for each in ended for field in ("rayJobName", "rayClusterName")}

    def is_outdated(self, warning: ClusterWarning) -> bool:
        if warning.kind == "Pod":
            return warning.name in self._started_pods  # it has what it waited for
        if warning.kind not in ("RayJob", "RayCluster"):
            return False
        if (warning.kind, warning.reason) in _NOT_IN_CONFLICT and _CONFLICT.fullmatch(warning.message):
            return True  # KubeRay's cache did not have what KubeRay had created
        return self._is_of_another_cluster(warning) or self._is_created(warning)

    def _is_of_another_cluster(self, warning: ClusterWarning) -> bool:
        """Whether the object belongs to an attempt that has ended, or is a RayCluster that was replaced after a time in
        a queue.
        """
        if warning.name in self._ended:
            return True
        return warning.kind == "RayCluster" and bool(self._clusters) and warning.name not in self._clusters

    def _is_created(self, warning: ClusterWarning) -> bool:
        """Whether KubeRay has created what the warning is about. It creates the Service of a RayCluster before the
        pods, and that of a RayJob before it submits the job. A pod that was created after the warning shows that the
        refusal is over, also when the pod is lost now: but of workers not while one is missing, which may be refused
        still. KubeRay repeats an Event every five minutes only.
        """
        reported = math.inf if warning.time is None else warning.time
        match warning.kind, warning.reason:
            case _, "FailedToCreateHeadPod":
                return self._pods > self._workers or self._last_head > reported
            case _, "FailedToCreateWorkerPod":
                desired = int(self._job["spec"]["cluster"]["workers"])
                none_is_missing = self._workers_with_lost >= desired
                return self._workers >= desired or (self._last_worker > reported and none_is_missing)
            case "RayJob", "FailedToCreateService":
                return warning.name in self._submitted
            case _, "FailedToCreateRayCluster" | "FailedToCreateService":
                return self._pods > 0 or max(self._last_head, self._last_worker) > reported
        return False


def is_submitted(ray_job: Object) -> bool:
    """Return whether KubeRay has submitted the job to Ray: from then on it reports Ray's status of the job."""
    status = ray_job.get("status") or {}
    return bool(status.get("jobStatus") or (status.get("rayJobInfo") or {}).get("startTime"))


def pods_of_open_attempt(observed: Observed) -> list[Object]:
    """Return the pods of the attempt that is open, also those that have failed."""
    numbers = {each["number"] for each in _attempts(observed) if not each.get("endTime")}
    return [pod for pod in observed.pods if names.attempt_of(pod) in numbers]


def are_all_ready(observed: Observed) -> bool:
    """Return whether all pods of the open attempt are ready: its head and its workers."""
    ready = [pod for pod in pods_of_open_attempt(observed) if has_condition(pod, "Ready")]
    return len(ready) > int(observed.job["spec"]["cluster"]["workers"])


def _attempts(observed: Observed) -> list[Object]:
    return list((observed.job.get("status") or {}).get("attempts") or ())


def _is_replaced(pod: Object) -> bool:
    """Whether the pod is being deleted or has ended, so that KubeRay creates another one."""
    return bool(pod["metadata"].get("deletionTimestamp")) or has_ended(pod)


def _is_worker(pod: Object) -> bool:
    return bool(pod["metadata"]["labels"].get(names.RAY_NODE_TYPE) == "worker")


def _last_creation(pods: Iterable[Object]) -> float:
    """When the last of the pods was created, in seconds since the epoch; -inf where there are none."""
    times = (parse_time(pod["metadata"].get("creationTimestamp")) for pod in pods)
    return max((time for time in times if time is not None), default=-math.inf)


def _is_pending(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") == "Pending"
