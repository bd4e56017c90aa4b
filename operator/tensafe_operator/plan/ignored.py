"""Ignored: find the RayJob with which KubeRay does nothing, although the next step is KubeRay's.

Its kind may be installed although KubeRay's operator does not run, watches other namespaces, or cannot reach the head.
A RayJob then stays in the state that it has. Otherwise nothing would explain why the job waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensafe_api import fixes
from tensafe_api.reasons import ConditionType, Reason
from tensafe_api.resources.status import Status
from tensafe_api.timestamps import parse_time
from tensafe_operator import names
from tensafe_operator.plan.attempts import is_queued
from tensafe_operator.plan.blockers import Blocker, blocked_state
from tensafe_operator.plan.conditions import JobState, set_conditions
from tensafe_operator.plan.draft import Draft
from tensafe_operator.plan.observed import Object
from tensafe_operator.plan.outdated import is_submitted
from tensafe_operator.plan.parsing import has_condition, has_ended, is_terminal, object_condition

IGNORED_SECONDS = 120
"""For how long KubeRay may do nothing with a RayJob."""
_KEPT = "keeps a finalizer"
_UNSUBMITTED = "is not submitted"


@dataclass(frozen=True)
class _Wait:
    """A wait for KubeRay.

    Attributes:
        what: what KubeRay has not done with the RayJob.
        since: since when, in seconds since the epoch; 0: since the last change of the job's conditions.
        pod: the pod that is left, where KubeRay waits for its deletion.
    """

    what: str
    since: float = 0.0
    pod: str = ""


def unless_ignored(draft: Draft, state: JobState) -> JobState:
    """Return `state`, or that of a job that waits because KubeRay does nothing with one of its RayJobs.

    The times of a RayJob and its pods are those of other clocks. A change of the job's conditions, by the operator's
    own clock, starts the wait again, so that clocks that differ stall no job that starts.
    """
    pods = _pods_by_attempt(draft)
    waits = [(each, _wait_for_kuberay(draft, each, pods)) for each in draft.observed.ray_jobs]
    waiting = [(each, wait) for each, wait in waits if wait is not None]
    changed = last_change(draft, state) if waiting else 0.0
    for ray_job, wait in waiting:
        if has_waited(draft, changed, wait.since, IGNORED_SECONDS):
            return blocked_state(_left(wait.pod) if wait.pod else _ignored(ray_job, wait.what), state.phase)
    return state


def last_change(draft: Draft, state: JobState) -> float:
    """Return when a condition of a job in this state changed last that does not change because the job is stalled, in
    seconds since the epoch.
    """
    status = draft.status.model_copy()
    set_conditions(status, state, draft.now)
    own = (ConditionType.STALLED.value, ConditionType.RECONCILING.value)
    times = [parse_time(each.last_transition_time) for each in status.conditions if each.type not in own]
    return max((time for time in times if time is not None), default=0.0)


def has_waited(draft: Draft, changed: float, since: float, seconds: float) -> bool:
    """Return whether so many seconds have passed since `since` and since the `last_change` of the conditions. If not,
    the job is reconciled again when they have.
    """
    end = max(since, changed) + seconds
    if draft.now < end:
        draft.wake_at(end)
    return draft.now >= end


def _ignored(ray_job: Object, what: str) -> Blocker:
    message = f"RayJob {ray_job['metadata']['name']} {what} after {IGNORED_SECONDS} s"
    if what == _UNSUBMITTED:
        cause = "KubeRay cannot reach port 8265 of its head, or KubeRay's operator does not run"
        return Blocker(Reason.NOT_SUBMITTED, f"{message}, because {cause}")
    cause = "KubeRay's operator does not run, or does not watch this namespace"
    if what == _KEPT:
        cause += ", or because the finalizer is that of another component"
    fix = fixes.FINALIZER if what == _KEPT else ""
    return Blocker(Reason.KUBERAY_MISSING, f"{message}, because {cause}", fix)


def _left(pod: str) -> Blocker:
    """KubeRay creates no other pod before this one is gone."""
    late = f"{IGNORED_SECONDS} s after the end of its grace period"
    return Blocker(
        Reason.PODS_LEFT, f"pod {pod} is still being deleted {late}: its node does not answer", fixes.NODE_LOST
    )


def _wait_for_kuberay(draft: Draft, ray_job: Object, pods_of: Mapping[int | None, list[Object]]) -> _Wait | None:
    """What KubeRay has to do next with a RayJob; None where the next step is that of another component."""
    metadata, status = ray_job["metadata"], ray_job.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return _Wait(_KEPT, parse_time(metadata["deletionTimestamp"]) or 0.0)
    own = pods_of.get(names.attempt_named(draft.observed.job["metadata"]["name"], metadata["name"]), [])
    pods = [pod for pod in own if not has_ended(pod)]
    stopping = any(pod["metadata"].get("deletionTimestamp") for pod in pods)
    if is_terminal(ray_job):
        kept = stopping or not pods or draft.observed.job["spec"].get("podsTTLSeconds")
        return None if kept else _Wait("has ended and still has its pods", _end_of_attempt(draft.status, ray_job))
    state = status.get("jobDeploymentStatus")
    if is_queued(ray_job):
        return None
    if not state:
        return _Wait("has no status", parse_time(metadata.get("creationTimestamp")) or 0.0)
    if state not in ("Initializing", "Running"):
        return None if stopping else _Wait(f"is still {state}")
    if is_submitted(ray_job):
        return None
    if not pods:
        what = "has only pods that have ended" if own else "has no pods"
        return _Wait(what, max([parse_time(status.get("startTime")) or 0.0, *map(_last_change_of_pod, own)]))
    metadata_of_deleted = (pod["metadata"] for pod in pods if pod["metadata"].get("deletionTimestamp"))
    deletions = [(parse_time(each["deletionTimestamp"]) or 0.0, each["name"]) for each in metadata_of_deleted]
    if deletions:
        since, pod = min(deletions)
        return _Wait("waits for a pod that is being deleted", since, pod)
    ready_since = head_ready_since(pods)
    return None if ready_since is None or state != "Running" else _Wait(_UNSUBMITTED, ready_since)


def _pods_by_attempt(draft: Draft) -> Mapping[int | None, list[Object]]:
    """The pods of each attempt, also those that have ended."""
    pods: dict[int | None, list[Object]] = {}
    for pod in draft.observed.pods:
        pods.setdefault(names.attempt_of(pod), []).append(pod)
    return pods


def _last_change_of_pod(pod: Object) -> float:
    """When a pod was created, or one of its conditions changed last, such as when it ended. KubeRay works if it then
    replaces the pod.
    """
    changes = [each.get("lastTransitionTime") for each in (pod.get("status") or {}).get("conditions") or ()]
    return max(parse_time(time) or 0.0 for time in (pod["metadata"].get("creationTimestamp"), *changes))


def head_ready_since(pods: Iterable[Object]) -> float | None:
    """Return since when the head among these pods is ready, in seconds since the epoch; None where it is not."""
    for pod in pods:
        if pod["metadata"]["labels"].get(names.RAY_NODE_TYPE) == "head" and has_condition(pod, "Ready"):
            return parse_time(object_condition(pod, "Ready").get("lastTransitionTime")) or 0.0
    return None


def _end_of_attempt(status: Status, ray_job: Object) -> float:
    name = ray_job["metadata"]["name"]
    return max((parse_time(each.end_time) or 0.0 for each in status.attempts if each.ray_job_name == name), default=0.0)
