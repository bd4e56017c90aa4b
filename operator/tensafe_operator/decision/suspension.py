"""Suspension: `spec.suspend` stops a job at a checkpoint and lets it resume from there.

The trainer reads `spec.suspend` at each charge, saves a checkpoint and ends. An attempt that has charged nothing has
nothing to save, so its RayJob is deleted at once. An attempt that does not stop in time is deleted as well.
"""

from __future__ import annotations

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.status import Status
from tensafe_api.timestamps import format_time, parse_time
from tensafe_operator.decision.attempts import Assessment, AttemptState
from tensafe_operator.decision.conditions import JobState, blocked_state
from tensafe_operator.decision.diagnosis import find_unanswered
from tensafe_operator.decision.draft import Draft
from tensafe_operator.decision.observation import Object

SUSPEND_SECONDS = 120
"""How long the trainer may take to save a checkpoint. After that its RayJob is deleted."""
SUSPENDED = JobState(Phase.SUSPENDED, Reason.SUSPENDED)
_SUSPENDING = JobState(Phase.STARTING, Reason.SUSPENDING)


def suspend_attempt(draft: Draft, ray_job: Object, state: AttemptState) -> None:
    """Wait until the workers of an open attempt stop, or delete its RayJob."""
    requested = draft.status.suspend_requested_time or format_time(draft.now)
    draft.status.suspend_requested_time = requested
    end = (parse_time(requested) or draft.now) + SUSPEND_SECONDS
    unanswered = find_unanswered(draft) if "deletionTimestamp" in ray_job["metadata"] else None
    draft.set_state(blocked_state(unanswered, Phase.STARTING) if unanswered else _SUSPENDING)
    if state is not AttemptState.RUNNING or draft.now >= end:
        draft.delete(ray_job)
    else:
        draft.wake_at(end)


def withdraw_request(draft: Draft, ray_job: Object) -> None:
    """Record that the workers are no longer asked to stop, unless their RayJob is being deleted for it."""
    if "deletionTimestamp" not in ray_job["metadata"]:
        draft.status.suspend_requested_time = None


def as_suspension(assessment: Assessment, status: Status, *, suspend: bool = False) -> Assessment:
    """Return the assessment of an attempt whose RayJob was deleted: a deletion for a suspension is not a failure.

    Args:
        suspend: whether the manifest asks for suspension. An operator that was killed after it had deleted the RayJob
            has not written so into the status.
    """
    if assessment.state is AttemptState.FAILED and (suspend or status.suspend_requested_time is not None):
        message = "the attempt was suspended before it saved a checkpoint"
        return Assessment(AttemptState.SUSPENDED, Reason.INTERRUPTED, message)
    return assessment
