"""A job's phase as conditions: what `kubectl wait`, kstatus and people look at.

A condition's transition time is that of its last change of status, so it is kept from before where nothing changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensafe_api.reasons import ConditionType, Phase, Reason
from tensafe_api.resources.status import Condition, Status
from tensafe_operator.plan.timestamps import format_time

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
    good = phase in (Phase.SUCCEEDED, Phase.BUDGET_EXHAUSTED)
    at_rest = phase.final or phase is Phase.SUSPENDED
    holds = {
        ConditionType.ACCEPTED: accepted,
        ConditionType.READY: good,
        ConditionType.RECONCILING: not at_rest and not stalled,
        ConditionType.STALLED: stalled or phase is Phase.FAILED,
        ConditionType.QUEUED: phase is Phase.QUEUED,
        ConditionType.PODS_READY: phase is Phase.RUNNING or (phase is Phase.STARTING and _all_ready(status)),
        ConditionType.RUNNING: phase is Phase.RUNNING,
        ConditionType.SUCCEEDED: good,
        ConditionType.FAILED: phase is Phase.FAILED,
    }
    before = {condition.type: condition for condition in status.conditions}
    text = message[:_LONGEST] or reason.sentence
    status.conditions = tuple(
        _condition(kind, value, reason, text, now, before.get(kind.value), status.observed_generation)
        for kind, value in holds.items()
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
    kind, generation = ConditionType.STALLED, status.observed_generation
    told = _condition(kind, True, Reason.INTERNAL_ERROR, message, now, earlier.get(kind.value), generation)
    status.conditions = tuple({**earlier, kind.value: told}.values())
    return status


def _all_ready(status: Status) -> bool:
    return status.workers is not None and status.workers.ready >= status.workers.desired


def _condition(
    kind: ConditionType,
    holds: bool,
    reason: Reason,
    message: str,
    now: float,
    before: Condition | None,
    generation: int,
) -> Condition:
    unchanged = before is not None and before.status == str(holds)
    return Condition(
        type=kind.value,
        status=str(holds),
        reason=reason.value,
        message=message,
        last_transition_time=before.last_transition_time if unchanged and before else format_time(now),
        observed_generation=generation,
    )
