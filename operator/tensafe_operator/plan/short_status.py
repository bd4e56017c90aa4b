"""Short status: what is written of a status that the API server cannot store, because the job has become too large.

A job and its status are one object, of at most about 1.5 MB. Any user who may edit the job can fill it, for example
with labels. Without a shorter status, the charges that follow would not be counted in it.

A user may also fill the room that a short status has left. So each short status has room for longer figures, as spaces
at the end of a message: with longer figures it has fewer spaces, and keeps its length. Where there is no room for that,
it cannot be stored, and no attempt starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensafe_api.fixes import Fix
from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Status
from tensafe_operator.plan.blockers import Blocker
from tensafe_operator.plan.conditions import stalled_status

_TOO_LARGE = Blocker(Reason.FORBIDDEN, "", "The job is too large for the API server", Fix.JOB_TOO_LARGE)
TOO_LARGE = _TOO_LARGE.sentence
"""The message of the condition Stalled."""
ROOM_FOR_FIGURES = 128
"""Bytes of the figures that grow with the charges, and of the spaces. Two ε have 20 at most, and three counts 17."""
_GROWING = (
    "epsilon_claimed",
    "epsilon_spent",
    "steps_claimed",
    "steps_charged",
    "steps_recharged",
)


def short_status(before: Mapping[str, Any], status: Status, now: float) -> Status:
    """Return `status` without what the ledger or the log has too, and stalled. Every privacy figure stays.

    Args:
        before: the stored status of the job.
        now: seconds since the epoch.
    """
    bare = {"message": "", "observed_generation": None}
    earlier, last = status.attempts[:-1], status.attempts[-1:]
    short = status.model_copy(
        update={
            "checkpoints": (),
            "evaluations": (),
            "conditions": tuple(each.model_copy(update=bare) for each in status.conditions),
            "attempts": (*(each.model_copy(update={"message": None}) for each in earlier), *last),
        }
    )
    return _with_room(stalled_status(before, _TOO_LARGE, now, short) or short)


def status_of_figures(before: Mapping[str, Any], status: Status, now: float) -> Status:
    """Return the stored status, shortened, with the privacy figures of `status`. It is not longer than the stored one,
    so it can be stored where a short status with what is new, such as the end of an attempt, cannot.
    """
    stored = Status.model_validate(before, by_alias=True, by_name=False)
    return short_status(before, stored.model_copy(update={"privacy": status.privacy}), now)


def _with_room(short: Status) -> Status:
    """Return a short status with spaces that make up `ROOM_FOR_FIGURES` together with the figures."""
    if not short.conditions:
        return short
    values = (getattr(short.privacy, name) for name in _GROWING)
    room = ROOM_FOR_FIGURES - sum(len(str(value)) for value in values if value is not None)
    first, *others = short.conditions
    spaced = first.model_copy(update={"message": first.message + " " * room})
    return short.model_copy(update={"conditions": (spaced, *others)})
