"""Ignored: find the RayJob with which KubeRay does nothing.

Its kind may be installed although KubeRay's operator does not run, or watches other namespaces. A new RayJob then gets
no status, and one that is deleted keeps its finalizer. Otherwise nothing would explain why the job waits.
"""

from __future__ import annotations

from tensafe_api.reasons import ConditionType, Reason
from tensafe_api.resources.status import Status
from tensafe_api.timestamps import parse_time
from tensafe_operator.plan.attempts import is_queued
from tensafe_operator.plan.blockers import Blocker, blocked_state
from tensafe_operator.plan.conditions import JobState, set_conditions
from tensafe_operator.plan.draft import Draft
from tensafe_operator.plan.observed import Object

IGNORED_SECONDS = 120
"""For how long KubeRay may do nothing with a RayJob that is new or is being deleted."""


def unless_ignored(draft: Draft, state: JobState) -> JobState:
    """Return `state`, or that of a job that waits because KubeRay does nothing with one of its RayJobs.

    The times of a RayJob are those of the API server's clock. A change of the job's conditions, by the operator's own
    clock, starts the wait again, so that clocks that differ stall no job that starts.
    """
    for ray_job in draft.observed.ray_jobs:
        since = _waits_since(ray_job)
        if since is not None and has_waited(draft, state, since, IGNORED_SECONDS):
            return blocked_state(_ignored(ray_job), state.phase)
    return state


def has_waited(draft: Draft, state: JobState, since: float, seconds: float) -> bool:
    """Return whether so many seconds have passed since `since` and since the last change of the conditions of a job in
    this state. If not, it is reconciled again when they have.
    """
    status = draft.status.model_copy()
    set_conditions(status, state, draft.now)
    end = max(since, _last_change(status)) + seconds
    if draft.now < end:
        draft.wake_at(end)
    return draft.now >= end


def _ignored(ray_job: Object) -> Blocker:
    found = "keeps its finalizer" if "deletionTimestamp" in ray_job["metadata"] else "has no status"
    message = f"RayJob {ray_job['metadata']['name']} {found} after {IGNORED_SECONDS} s"
    cause = "KubeRay's operator does not run, or does not watch this namespace"
    return Blocker(Reason.KUBERAY_MISSING, f"{message}, because {cause}")


def _waits_since(ray_job: Object) -> float | None:
    """Since when a RayJob waits for KubeRay, in seconds since the epoch; None where it does not."""
    metadata = ray_job["metadata"]
    deletion = parse_time(metadata.get("deletionTimestamp"))
    if deletion is not None or is_queued(ray_job):
        return deletion
    is_new = not (ray_job.get("status") or {}).get("jobDeploymentStatus")
    return parse_time(metadata.get("creationTimestamp")) if is_new else None


def _last_change(status: Status) -> float:
    """When a condition changed last that does not change because the job is stalled."""
    own = (ConditionType.STALLED.value, ConditionType.RECONCILING.value)
    times = [parse_time(each.last_transition_time) for each in status.conditions if each.type not in own]
    return max((time for time in times if time is not None), default=0.0)
