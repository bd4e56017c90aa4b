"""Predecessors: an attempt starts only when no RayJob and no pod of an earlier attempt is left.

Two attempts side by side would both charge the ledger. The ledger fences the earlier one, so this wait saves privacy
budget and does not protect the privacy claim. That is why a pod on a node that no longer answers may be ignored after a
while.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensafe_api.timestamps import parse_time
from tensafe_operator import names
from tensafe_operator.plan.observed import Observed
from tensafe_operator.plan.parsing import is_terminal

FORGOTTEN_SECONDS = 300
"""A pod whose deletion was requested so long ago is on a node that does not answer, and no longer blocks an attempt."""


@dataclass(frozen=True)
class Predecessors:
    """What is left of earlier attempts.

    Attributes:
        alive: whether the next attempt has to wait.
        wakes: when a pod that is being deleted stops blocking at the latest, in seconds since the epoch.
    """

    alive: bool
    wakes: tuple[float, ...] = ()


def find_predecessors(observed: Observed, number: int, now: float) -> Predecessors:
    """Return what is left, at the time `now`, of the attempts before `number`, and of an earlier RayJob of `number`
    itself that was deleted before the operator observed it.
    """
    if any(not is_terminal(each) for each in observed.ray_jobs):
        return Predecessors(alive=True)
    wakes = []
    for pod in observed.pods:
        attempt = names.attempt_of(pod)
        deletion = parse_time(pod["metadata"].get("deletionTimestamp"))
        if deletion is not None:
            wakes.append(deletion + FORGOTTEN_SECONDS)
        forgotten = deletion is not None and now >= deletion + FORGOTTEN_SECONDS
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if attempt is not None and attempt <= number and not ended and not forgotten:
            return Predecessors(True, tuple(wakes))
    return Predecessors(False, tuple(wakes))
