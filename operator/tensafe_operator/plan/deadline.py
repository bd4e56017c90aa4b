"""Deadlines: of all attempts together, and of the start of one.

`activeDeadlineSeconds` limits the time of all attempts together. Time in which no attempt is open, or in which the open
one waits in a queue, does not count. `startDeadlineSeconds` limits the time until the pods of an attempt run. KubeRay
has both deadlines for one RayJob, and the values with which it was created. The authors of jobs may change theirs at
any time, so the operator counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Attempt
from tensafe_api.timestamps import active_seconds, parse_time
from tensafe_operator.plan.attempts import Assessment, AttemptState, is_queued
from tensafe_operator.plan.ignored import head_ready_since
from tensafe_operator.plan.observed import Object, Observed
from tensafe_operator.plan.outdated import pods_of_open_attempt
from tensafe_operator.plan.parsing import IN_CREATION, has_condition, has_ended, started_waiting_for_head


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


def with_waiting_pod(exceeded: Assessment, observed: Observed) -> Assessment:
    """Return the assessment of an attempt whose deadline has passed, with the name of a pod that is not ready. The
    status reports nothing while a large image is pulled, or in the first minutes without a node.
    """
    everyone = [pod for pod in pods_of_open_attempt(observed) if not _is_over(pod)]
    pods = [pod for pod in everyone if not has_condition(pod, "Ready")]
    if not pods:
        return exceeded
    name, state = _most_telling(pods, head_is_ready=head_ready_since(everyone) is not None)
    return replace(exceeded, message=f"{exceeded.message}; when the deadline passed, pod {name} {state}")


def _most_telling(pods: Sequence[Object], *, head_is_ready: bool) -> tuple[str, str]:
    """Return the name of one of these pods, none of which is ready, and what it was doing."""
    waiting = [pod for pod in pods if head_is_ready and started_waiting_for_head(pod) is not None]
    unplaced = [pod for pod in pods if not has_condition(pod, "PodScheduled") and not _containers(pod)]
    created = [pod for pod in pods if _is_being_created(pod)]
    states = (
        (waiting, "had not reached the head, which was ready"),
        (unplaced, "waited for a node"),
        (created, "was being created"),
        (pods, "was not ready"),
    )
    return next((found[0]["metadata"]["name"], state) for found, state in states if found)


def _is_over(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) or has_ended(pod)


def _is_being_created(pod: Object) -> bool:
    waiting = (((each.get("state") or {}).get("waiting") or {}) for each in _containers(pod))
    return any(each.get("reason") in IN_CREATION for each in waiting)


def _containers(pod: Object) -> Sequence[Object]:
    """The states of the containers, once the kubelet has reported them."""
    return (pod.get("status") or {}).get("containerStatuses") or ()
