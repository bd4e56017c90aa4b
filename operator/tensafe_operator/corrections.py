"""Limits how often an object is brought back that another client changes again and again.

A second operator for the same namespace with other settings, or a tool that rewrites NetworkPolicies, would otherwise
cause hundreds of writes in a second, for as long as the job runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tensafe_api.reasons import Reason
from tensafe_operator import names
from tensafe_operator.kinds import CORRECTED_KINDS
from tensafe_operator.plan.observed import Action, ClusterWarning, Create

BURST, WINDOW_SECONDS, PAUSE_SECONDS = 10, 60.0, 60.0
"""An object that was brought back so often in this time is left as it is for a while."""
_MESSAGE = (
    f"it was brought back {BURST} times within {WINDOW_SECONDS:.0f} s or again right after a pause, and another client "
    "changes it each time, so it is left as it is for a minute"
)
log = logging.getLogger(__name__)
_Key = tuple[str, str, str]


@dataclass(frozen=True)
class Allowed:
    """Which actions may be taken now.

    Attributes:
        left: what the status shows of the objects that are left as they are.
        corrects: whether they bring back objects of an attempt, and do not start one.
        until: when one of these may be brought back again, in seconds since the epoch; None if there is none.
    """

    actions: tuple[Action, ...]
    left: tuple[ClusterWarning, ...] = ()
    until: float | None = None
    corrects: bool = False


class Corrections:
    """The objects that were brought back lately.

    Args:
        clock: a time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lately: dict[_Key, list[float]] = {}
        self._paused: dict[_Key, float] = {}
        self._shown: set[_Key] = set()

    def allowed(self, actions: Iterable[Action], stalled: str = "") -> Allowed:
        """Return the actions without those for objects that are left as they are for now.

        The objects with which an attempt starts are always created.

        Args:
            stalled: what the status says that stalls the job. A pause that was shown, and is not in it any more, was
                removed by another operator. It is not shown again, because that operator would remove it at once.
        """
        actions = tuple(actions)
        created = [each for each in actions if isinstance(each, Create)]
        if not created or any(each.kind not in CORRECTED_KINDS for each in created):
            return Allowed(actions)
        ends = {id(each): end for each in created if (end := self._pause_of(each)) is not None}
        left = tuple(
            _warning_of(each)
            for each in created
            if id(each) in ends and (_key(each) not in self._shown or _MESSAGE in stalled)
        )
        kept = tuple(each for each in actions if id(each) not in ends)
        return Allowed(kept, left, min(ends.values(), default=None), corrects=True)

    def show(self, namespace: str, left: Iterable[ClusterWarning]) -> None:
        """Note that the status shows these objects that are left as they are."""
        self._shown |= {(each.kind, namespace, each.name) for each in left}

    def count(self, action: Create) -> None:
        """Count an object that was brought back. What the API server refuses is not: no other client changes it."""
        if action.kind in CORRECTED_KINDS:
            self._lately.setdefault(_key(action), []).append(self._clock())

    def _pause_of(self, action: Create) -> float | None:
        """Return until when an object is left as it is; None if it may be brought back now."""
        key, now = _key(action), self._clock()
        self._forget(now)
        if key in self._paused:
            return self._paused[key]
        if len(self._lately.get(key, ())) < BURST:
            return None
        self._paused[key] = end = now + PAUSE_SECONDS
        self._lately[key] = [end] * (BURST - 1)  # the next one shows whether the client is still there
        log.error(
            "%s %s: %s: find the client, for instance a second operator for this namespace",
            *(action.kind, key[2], _MESSAGE),
            extra=names.log_fields(key[1], action.manifest["metadata"]["labels"][names.JOB]),
        )
        return end

    def _forget(self, now: float) -> None:
        self._paused = {key: end for key, end in self._paused.items() if end > now}
        self._shown &= self._paused.keys()
        lately = {key: [time for time in times if time > now - WINDOW_SECONDS] for key, times in self._lately.items()}
        self._lately = {key: times for key, times in lately.items() if times}


def _key(action: Create) -> _Key:
    metadata = action.manifest["metadata"]
    return action.kind, metadata["namespace"], metadata["name"]


def _warning_of(action: Create) -> ClusterWarning:
    return ClusterWarning(action.kind, str(action.manifest["metadata"]["name"]), Reason.FORBIDDEN, _MESSAGE)
