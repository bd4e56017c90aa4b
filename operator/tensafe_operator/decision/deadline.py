"""Deadlines: of all attempts together, and of the start of one.

`activeDeadlineSeconds` limits the time of all attempts together. Time in which no attempt is open, or in which the open
one waits in a queue, does not count. `startDeadlineSeconds` limits the time until the pods of an attempt run. KubeRay
has both deadlines for one RayJob, and the values with which it was created. The authors of jobs may change theirs at
any time, so the operator counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Attempt
from tensafe_api.timestamps import active_seconds, parse_time
from tensafe_operator.decision.attempts import Assessment, AttemptState, is_queued
from tensafe_operator.decision.diagnosis import find_blocker
from tensafe_operator.decision.observation import Object, Observed
from tensafe_operator.decision.parsing import has_condition, has_ended, pods_of_open_attempt

_LONGEST_MESSAGE = 512


@dataclass(frozen=True)
class Deadline:
    """A deadline of a job with an open attempt.

    Attributes:
        exceeded: how the open attempt ends, where the deadline has passed.
        at: when the deadline passes, in seconds since the epoch, where it has not passed.
    """

    exceeded: Assessment | None = None
    at: float | None = None


def check_deadline(attempts: Iterable[Attempt], limit: int | None, now: float) -> Deadline:
    """Return the deadline of all attempts at the time `now`. A `limit` of None is no deadline."""
    if limit is None:
        return Deadline()
    used = sum(_active_seconds(each, now) for each in attempts)
    if used >= limit:
        message = f"all attempts together ran for {limit} s"
        return Deadline(exceeded=Assessment(AttemptState.FAILED, Reason.DEADLINE_EXCEEDED, message))
    return Deadline(at=now + limit - used)


def check_start_deadline(ray_job: Object, limit: int | None, now: float, *, ready: bool) -> Deadline:
    """Return the deadline for the start of the pods of a RayJob at the time `now`. A `limit` of None is no deadline.

    KubeRay begins to count again when a queue admits the RayJob again.

    Args:
        ready: whether all pods are ready. KubeRay may report it much later, such as when its operator does not run.
    """
    status = ray_job.get("status") or {}
    started = parse_time(status.get("startTime"))
    starts = status.get("jobDeploymentStatus") == "Initializing" and not is_queued(ray_job)
    if limit is None or started is None or not starts or ready or ray_job["metadata"].get("deletionTimestamp"):
        return Deadline()
    if now < started + limit:
        return Deadline(at=started + limit)
    message = f"the pods did not start within {limit} s"
    return Deadline(exceeded=Assessment(AttemptState.FAILED, Reason.START_DEADLINE_EXCEEDED, message))


def _active_seconds(attempt: Attempt, now: float) -> float:
    times = (attempt.start_time, attempt.end_time, attempt.queued_since, attempt.queued_seconds)
    return active_seconds(*times, now) or 0.0


def with_what_it_waited_for(exceeded: Assessment, observed: Observed) -> Assessment:
    """Return the assessment of an attempt whose time is over, with what keeps its pods from running, or else the name
    of one that is not ready. How a pod failed is in `failed_pods` of the attempt.
    """
    blocker = find_blocker(observed)
    waiting = [pod for pod in pods_of_open_attempt(observed) if not has_condition(pod, "Ready") and not has_ended(pod)]
    if blocker is not None and blocker.reason is not Reason.CRASH_LOOP:
        what = f"{blocker.reason.value}: {blocker.what}"
    elif waiting:
        what = f"pod {waiting[0]['metadata']['name']}, which was not ready"
    else:
        return exceeded
    message = f"{exceeded.message or exceeded.reason.sentence}; it waited for {what}"
    return replace(exceeded, message=message[:_LONGEST_MESSAGE])
