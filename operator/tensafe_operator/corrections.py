"""Limits how often an object is brought back that another client changes again and again.

A second operator for the same namespace with other settings, or a tool that rewrites NetworkPolicies, would otherwise
cause hundreds of writes in a second, for as long as the job runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tensafe_operator import names
from tensafe_operator.kinds import CORRECTED_KINDS
from tensafe_operator.plan.observed import Action, Create

BURST, WINDOW_SECONDS, PAUSE_SECONDS = 10, 60.0, 60.0
"""An object that was brought back so often in this time is left as it is for a while."""
log = logging.getLogger(__name__)
_Key = tuple[str, str, str]


class Corrections:
    """The objects that were brought back lately.

    Args:
        clock: a time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lately: dict[_Key, list[float]] = {}
        self._paused: dict[_Key, float] = {}

    def allowed(self, actions: Iterable[Action]) -> tuple[tuple[Action, ...], float | None]:
        """Return the actions without those for objects that are left as they are for now, and when one of these may be
        brought back again, by the clock; None if there is none.

        The objects with which an attempt starts are always created.
        """
        actions = tuple(actions)
        created = [each for each in actions if isinstance(each, Create)]
        if not created or any(each.kind not in CORRECTED_KINDS for each in created):
            return actions, None
        ends = {id(each): end for each in created if (end := self._pause_of(each)) is not None}
        return tuple(each for each in actions if id(each) not in ends), min(ends.values(), default=None)

    def _pause_of(self, action: Create) -> float | None:
        """Count a correction, or return until when it has to wait."""
        metadata, now = action.manifest["metadata"], self._clock()
        key = (action.kind, metadata["namespace"], metadata["name"])
        self._forget(now)
        if key in self._paused:
            return self._paused[key]
        lately = self._lately.setdefault(key, [])
        lately.append(now)
        if len(lately) <= BURST:
            return None
        del self._lately[key]
        self._paused[key] = now + PAUSE_SECONDS
        fields = names.log_fields(key[1], metadata["labels"][names.JOB])
        log.error(
            "%s %s was brought back %d times within %.0f s, and is now left as it is for %.0f s: find the client that "
            "changes it, for instance a second operator for this namespace",
            *(action.kind, key[2], BURST, WINDOW_SECONDS, PAUSE_SECONDS),
            extra=fields,
        )
        return self._paused[key]

    def _forget(self, now: float) -> None:
        self._paused = {key: end for key, end in self._paused.items() if end > now}
        lately = {key: [time for time in times if time > now - WINDOW_SECONDS] for key, times in self._lately.items()}
        self._lately = {key: times for key, times in lately.items() if times}
