"""Short status: what is written of a status that the API server cannot store, because the job has become too large.

A job and its status are one object, of at most about 1.5 MB. Any user who may edit the job can fill it, for example
with labels. Without a shorter status, the charges that follow would not be counted in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Status
from tensafe_operator.plan.conditions import stalled_status

TOO_LARGE = (
    "The job is too large for the API server: remove labels, annotations or finalizers, or create a smaller one."
)
"""The message of the condition Stalled."""


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
    return stalled_status(before, Reason.FORBIDDEN, TOO_LARGE, now, short) or short
