"""Predecessors: an attempt starts only when no RayJob and no pod of an earlier attempt is left.

Two attempts side by side would both charge the ledger. The ledger fences the earlier one, so this wait saves privacy
budget and does not protect the privacy claim. That is why a pod on a node that no longer answers may be ignored after a
while.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensafe_api.reasons import Phase, Reason
from tensafe_api.timestamps import parse_time
from tensafe_operator import names
from tensafe_operator.decision.blockers import Blocker
from tensafe_operator.decision.conditions import JobState, blocked_state
from tensafe_operator.decision.draft import Draft
from tensafe_operator.decision.observation import Observed
from tensafe_operator.decision.parsing import has_ended, is_terminal

DELETED_SECONDS = 120
"""For how long a pod may run after the end of its attempt until its deletion is requested."""
FORGOTTEN_SECONDS = 300
"""A pod whose deletion was requested so long ago is on a node that does not answer, and no longer blocks an attempt."""


@dataclass(frozen=True)
class Predecessors:
    """What is left of earlier attempts.

    Attributes:
        alive: whether the next attempt has to wait.
        wakes: when a pod that is being deleted stops blocking at the latest, in seconds since the epoch.
        kept: a pod that blocks and that is not being deleted, or None.
    """

    alive: bool
    wakes: tuple[float, ...] = ()
    kept: Blocker | None = None


def find_predecessors(observed: Observed, number: int, now: float) -> Predecessors:
    """Return what is left, at the time `now`, of the attempts before `number`, and of an earlier RayJob of `number`
    itself that was deleted before the operator observed it.
    """
    if any(not is_terminal(each) for each in observed.ray_jobs):
        return Predecessors(alive=True)
    wakes, alive, kept = [], False, None
    for pod in observed.pods:
        attempt = names.attempt_of(pod)
        deletion = parse_time(pod["metadata"].get("deletionTimestamp"))
        if deletion is not None:
            wakes.append(deletion + FORGOTTEN_SECONDS)
        forgotten = deletion is not None and now >= deletion + FORGOTTEN_SECONDS
        if attempt is not None and attempt <= number and not has_ended(pod) and not forgotten:
            alive = True
            if deletion is None and kept is None:
                text = f"it is not being deleted {DELETED_SECONDS} s after the end of its attempt"
                kept = Blocker(Reason.PODS_LEFT, f"pod {pod['metadata']['name']}", text)
    return Predecessors(alive, tuple(wakes), kept)


def waiting_state(draft: Draft, predecessors: Predecessors) -> JobState:
    """Return the state of a job that waits for its predecessors: stalled where one of them is not deleted.

    KubeRay or the garbage collector deletes the pods of a RayJob that has ended or was deleted. A policy may refuse it,
    and a RayCluster that a user has separated from its RayJob stays.
    """
    message = "Waiting until the pods of the last attempt have terminated."
    if predecessors.kept:
        ended = (parse_time(attempt.end_time) or 0.0 for attempt in draft.status.attempts)
        end = max(ended, default=0.0) + DELETED_SECONDS
        if draft.now >= end:
            return blocked_state(predecessors.kept, Phase.STARTING)
        draft.wake_at(end)
    return JobState(Phase.STARTING, Reason.RETRYING, message)
