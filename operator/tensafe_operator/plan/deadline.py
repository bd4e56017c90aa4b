"""Deadline: `activeDeadlineSeconds` limits the time of all attempts together.

KubeRay's own deadline counts for one RayJob, so the operator counts over all of them. Time in which no attempt is open,
or in which the open one waits in a queue, does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Attempt
from tensafe_operator.plan.attempts import Assessment, AttemptState, active_seconds


@dataclass(frozen=True)
class Deadline:
    """The deadline of a job with an open attempt.

    Attributes:
        exceeded: how the open attempt ends, where the deadline has passed.
        at: when the deadline passes, in seconds since the epoch, where it has not passed.
    """

    exceeded: Assessment | None = None
    at: float | None = None


def check_deadline(attempts: Iterable[Attempt], limit: int | None, now: float) -> Deadline:
    """Return the deadline at the time `now`. A `limit` of None is no deadline."""
    if limit is None:
        return Deadline()
    used = sum(active_seconds(each, now) for each in attempts)
    if used >= limit:
        message = f"all attempts together ran for {limit} s"
        return Deadline(exceeded=Assessment(AttemptState.FAILED, Reason.DEADLINE_EXCEEDED, message))
    return Deadline(at=now + limit - used)
