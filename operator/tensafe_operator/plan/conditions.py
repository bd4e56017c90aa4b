"""A job's phase as conditions: what `kubectl wait`, kstatus and people look at.

A condition's transition time is that of its last change of status, so it is kept from before where nothing changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensafe_api.reasons import ConditionType, Phase, Reason
from tensafe_api.resources.status import Status
from tensafe_api.status_fold import condition_of, conditions_of

_LONGEST = 1024


def set_conditions(
    status: Status,
    phase: Phase,
    reason: Reason,
    message: str,
    now: float,
    *,
    accepted: bool = True,
    stalled: bool = False,
) -> None:
    """Let `status` say that the job is in `phase`, and why."""
    status.phase = phase.value
    status.conditions = conditions_of(
        phase,
        reason.value,
        message[:_LONGEST] or reason.sentence,
        now,
        before=status.conditions,
        workers=status.workers,
        generation=status.observed_generation,
        accepted=accepted,
        stalled=stalled,
    )


def status_of_failed_reconcile(before: Mapping[str, Any], error: str, now: float) -> Status | None:
    """The status `before`, which says now that the operator fails at the job with an `error` of this type; None for a
    job that has ended: nobody waits for it. The next pass that ends well takes it back, as any other condition.
    """
    status = Status.model_validate(before, by_alias=True, by_name=False)
    if status.phase is not None and Phase(status.phase).final:
        return None
    message = f"The operator failed with {error}, and tries again; its log tells more. {Reason.INTERNAL_ERROR.fix}"
    earlier = {condition.type: condition for condition in status.conditions}
    stalled = condition_of(
        ConditionType.STALLED,
        True,
        Reason.INTERNAL_ERROR.value,
        message,
        now,
        before=earlier.get(ConditionType.STALLED.value),
        generation=status.observed_generation,
    )
    status.conditions = tuple({**earlier, stalled.type: stalled}.values())
    return status
