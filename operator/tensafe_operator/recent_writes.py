"""Limits how often an object is applied that jobs share, or brought back that another client changes again and again.

A second operator for the same namespace with other settings, or a tool that rewrites NetworkPolicies, would otherwise
cause hundreds of writes in a second, for as long as the job runs. And a thousand jobs would apply one service account.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from tensafe_operator.decision.observation import Action, Create
from tensafe_operator.kinds import CORRECTED_KINDS, SHARED_KINDS

PAUSE_SECONDS = 60.0


class RecentWrites:
    """The objects that were written in the last minute.

    Args:
        clock: a time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written: dict[tuple[str, str, str], float] = {}

    def without_recent(self, actions: Iterable[Action]) -> tuple[Action, ...]:
        """The actions without those for shared and corrected objects that were written less than PAUSE_SECONDS ago. An
        attempt always starts with its NetworkPolicy.
        """
        actions, now = tuple(actions), self._clock()
        self._written = {key: time for key, time in self._written.items() if time > now - PAUSE_SECONDS}
        kinds = _kinds(actions)
        return tuple(
            each
            for each in actions
            if not isinstance(each, Create) or each.kind not in kinds or _key(each) not in self._written
        )

    def forget(self, namespace: str) -> None:
        """Forget what was written in a namespace: one of its jobs is gone, and the namespace may be."""
        self._written = {key: time for key, time in self._written.items() if key[1] != namespace}

    def note(self, actions: Collection[Action]) -> None:
        """Note that these actions were taken. That an attempt starts is no correction."""
        for each in actions:
            if isinstance(each, Create) and each.kind in _kinds(actions):
                self._written[_key(each)] = self._clock()


def _kinds(actions: Iterable[Action]) -> tuple[str, ...]:
    """The kinds of which the actions write an object once a minute at most."""
    starts = any(isinstance(each, Create) and each.kind == "RayJob" for each in actions)
    return SHARED_KINDS if starts else (*SHARED_KINDS, *CORRECTED_KINDS)


def _key(action: Create) -> tuple[str, str, str]:
    metadata = action.manifest["metadata"]
    return action.kind, metadata["namespace"], metadata["name"]
