"""Short status: what is written of a status that the API server cannot store, because the job has become too large.

A job and its status are one object, of at most about 1.5 MB. Any user who may edit the job can fill it, for example
with labels. Without a shorter status, the charges that follow would not be counted in it.

A user may also fill the room that a short status has left. So a short status keeps room for longer figures, as spaces
at the end of a message: with longer figures it has fewer spaces, and is as long as the stored one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Status
from tensafe_operator.plan.conditions import stalled_status

TOO_LARGE = (
    "The job is too large for the API server: remove labels, annotations or finalizers, or create a smaller one."
)
"""The message of the condition Stalled."""


ROOM_FOR_FIGURES = 128
"""In bytes. A count may get nine digits more, and each of three ε six."""


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
    return _filled(stalled_status(before, Reason.FORBIDDEN, TOO_LARGE, now, short) or short, before)


def status_of_figures(before: Mapping[str, Any], status: Status, now: float) -> Status:
    """Return the stored status, shortened, with the privacy figures of `status`. It is never longer than the stored
    one, so it can be stored where a short status with what is new, such as the end of an attempt, cannot.
    """
    stored = Status.model_validate(before, by_alias=True, by_name=False)
    return short_status(before, stored.model_copy(update={"privacy": status.privacy}), now)


def _filled(short: Status, before: Mapping[str, Any]) -> Status:
    """Return a short status with spaces up to the size of the stored one, at most `ROOM_FOR_FIGURES`."""
    room = min(_size(before) - _size(as_document(short)), ROOM_FOR_FIGURES)
    if room <= 0 or not short.conditions:
        return short
    first, *others = short.conditions
    spaced = first.model_copy(update={"message": first.message + " " * room})
    return short.model_copy(update={"conditions": (spaced, *others)})


def as_document(status: Status) -> dict[str, Any]:
    """The status as the job has it."""
    return status.model_dump(by_alias=True, mode="json", exclude_none=True)


def _size(document: Mapping[str, Any]) -> int:
    """The bytes that the API server stores, as far as a difference of two sizes needs them."""
    return len(json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode())
