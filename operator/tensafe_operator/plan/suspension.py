"""Suspension: `spec.suspend` stops a job at a checkpoint and lets it resume from there.

The trainer reads `spec.suspend` at each charge, saves a checkpoint and ends. An attempt that has charged nothing has
nothing to save, so its RayJob is deleted at once. An attempt that does not stop in time is deleted as well.
"""

from __future__ import annotations

from dataclasses import replace

from tensafe_api.reasons import ConditionType, Phase, Reason
from tensafe_api.resources.status import Status
from tensafe_api.timestamps import parse_time
from tensafe_operator.plan.attempts import Assessment, AttemptState
from tensafe_operator.plan.conditions import JobState
from tensafe_operator.plan.draft import Draft
from tensafe_operator.plan.ignored import unless_ignored
from tensafe_operator.plan.observed import Object

SUSPEND_SECONDS = 120
"""How long the trainer may take to save a checkpoint. After that its RayJob is deleted."""
SUSPENDED = JobState(Phase.SUSPENDED, Reason.SUSPENDED)
_SUSPENDING = JobState(Phase.STARTING, Reason.SUSPENDING)


def requested_at(status: Status) -> float | None:
    """Return since when the workers are asked to stop, in seconds since the epoch; None where they are not."""
    running = next((each for each in status.conditions if each.type == ConditionType.RUNNING.value), None)
    if running is None or running.reason != Reason.SUSPENDING.value:
        return None
    return parse_time(running.last_transition_time)


def suspend_attempt(draft: Draft, ray_job: Object, state: AttemptState) -> None:
    """Wait until the workers of an open attempt stop, or delete its RayJob."""
    end = (requested_at(draft.status) or draft.now) + SUSPEND_SECONDS
    draft.set_state(_suspending(draft, ray_job))
    if state is not AttemptState.RUNNING or draft.now >= end:
        draft.delete(ray_job)
    else:
        draft.wake_at(end)


def _suspending(draft: Draft, ray_job: Object) -> JobState:
    """The state of a job that is being suspended. The reason stays where KubeRay does not remove its finalizer from the
    RayJob, because `requested_at` reads it.
    """
    if "deletionTimestamp" not in ray_job["metadata"]:
        return _SUSPENDING
    state = unless_ignored(draft, _SUSPENDING)
    return replace(state, reason=_SUSPENDING.reason)


def excuse(assessment: Assessment, status: Status, *, suspend: bool = False) -> Assessment:
    """Return the assessment of an attempt whose RayJob was deleted: a deletion for a suspension is not a failure.

    Args:
        suspend: whether the manifest asks for suspension. An operator that was killed after it had deleted the RayJob
            has not written so into the status.
    """
    if assessment.state is AttemptState.FAILED and (suspend or requested_at(status) is not None):
        message = "the attempt was suspended before it saved a checkpoint"
        return Assessment(AttemptState.SUSPENDED, Reason.INTERRUPTED, message)
    return assessment
