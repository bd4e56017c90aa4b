"""Turn the state of a job into the conditions of its status.

`kubectl wait`, kstatus and Argo CD read these conditions. `RULES` holds one rule for each condition type, in the order
in which the status shows them. docs/extending/status-condition.md describes how to add a rule.

A condition's transition time is the time of the last change of its status; a change of reason or message keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensafe_api.job_status import PHASE_CONDITIONS, condition_of
from tensafe_api.reasons import ConditionType, Phase, Reason
from tensafe_api.resources.status import Condition, Status
from tensafe_api.timestamps import format_time
from tensafe_operator.decision.blockers import Blocker

_LONGEST = 1024


@dataclass(frozen=True)
class JobState:
    """The state that a reconcile finds for a job.

    Attributes:
        message: one sentence with the object and the fix; empty: the sentence of the reason.
        accepted: whether the manifest can be run.
        stalled: whether the job is blocked until a user acts.
        blocker: what keeps the job from running, if the reason and the message are those of a blocker.
    """

    phase: Phase
    reason: Reason
    message: str = ""
    accepted: bool = True
    stalled: bool = False
    blocker: Blocker | None = None


def blocked_state(blocker: Blocker, phase: Phase, *, stalled: bool = True) -> JobState:
    """Return the state of a job that this blocker keeps from running.

    Args:
        stalled: whether a user has to act.
    """
    return JobState(phase, blocker.reason, blocker.sentence, stalled=stalled, blocker=blocker)


@dataclass(frozen=True)
class Finding:
    """The result of a rule.

    Attributes:
        holds: whether the condition is True.
        reason: the reason of this condition alone; None: the reason and the message of the job's state.
        message: the message to that reason; empty: the sentence of the reason.
    """

    holds: bool
    reason: Reason | None = None
    message: str = ""


Rule = Callable[[JobState, Status], bool | Finding]
"""A pure function from the state of a job and its new status to one condition. The privacy figures and the worker count
of the status are those of the present reconcile; its conditions are those of the reconcile before.
"""


def _is_accepted(state: JobState, status: Status) -> Finding:
    return Finding(True, Reason.ACCEPTED) if state.accepted else Finding(False)


def _is_ready(state: JobState, status: Status) -> bool:
    """The job has ended with an adapter. Reason and message always tell the state: Argo CD shows them."""
    return PHASE_CONDITIONS[ConditionType.READY](state.phase)


def _is_reconciling(state: JobState, status: Status) -> Finding:
    """The job moves on without a user's action."""
    if state.phase.final:
        return Finding(False, Reason.ENDED)
    return Finding(not (state.phase is Phase.SUSPENDED or state.stalled))


def _are_pods_ready(state: JobState, status: Status) -> Finding:
    """All workers are ready. A running job may have lost one of them, and charges steps no longer."""
    workers = status.workers
    all_ready = workers is not None and workers.ready >= workers.desired
    if state.phase in (Phase.STARTING, Phase.RUNNING) and all_ready:
        return Finding(True, Reason.PODS_READY)
    count = f"{workers.ready} of {workers.desired} workers are ready." if workers is not None else ""
    return Finding(False, Reason.PODS_NOT_READY, count)


def _is_running(state: JobState, status: Status) -> Finding:
    """The job trains."""
    if state.phase is Phase.RUNNING or state.reason is Reason.SUSPENDING:
        return Finding(state.phase is Phase.RUNNING)
    return Finding(False, Reason.NOT_RUNNING)


def _is_succeeded(state: JobState, status: Status) -> Finding:
    holds = PHASE_CONDITIONS[ConditionType.SUCCEEDED](state.phase)
    return Finding(holds, None if state.phase.final else Reason.NOT_ENDED)


def _with_reason_of_state(holds: Callable[[JobState], bool], otherwise: Reason) -> Rule:
    """The rule of a condition that has the reason of the state if it is True, and `otherwise` if not."""
    return lambda state, status: Finding(True) if holds(state) else Finding(False, otherwise)


RULES: dict[ConditionType, Rule] = {
    ConditionType.ACCEPTED: _is_accepted,
    ConditionType.READY: _is_ready,
    ConditionType.RECONCILING: _is_reconciling,
    ConditionType.STALLED: _with_reason_of_state(
        lambda state: state.stalled or state.phase is Phase.FAILED, Reason.NOT_BLOCKED
    ),
    ConditionType.QUEUED: _with_reason_of_state(lambda state: state.phase is Phase.QUEUED, Reason.NOT_QUEUED),
    ConditionType.PODS_READY: _are_pods_ready,
    ConditionType.RUNNING: _is_running,
    ConditionType.SUCCEEDED: _is_succeeded,
    ConditionType.FAILED: _with_reason_of_state(lambda state: state.phase is Phase.FAILED, Reason.NOT_FAILED),
}


def set_conditions(status: Status, state: JobState, now: float) -> None:
    """Set the phase, all conditions and the blocker of `status` to those of `state`, at the time `now`."""
    status.phase = state.phase.value
    status.blocker = None if state.blocker is None else state.blocker.in_status()
    if state.phase.final:
        status.completion_time = status.completion_time or format_time(now)
        status.suspend_requested_time = None
    before = {condition.type: condition for condition in status.conditions}
    conditions = []
    for kind, rule in RULES.items():
        found = rule(state, status)
        finding = found if isinstance(found, Finding) else Finding(found)
        conditions.append(_condition(kind, finding, state, now, before.get(kind.value), status.observed_generation))
    status.conditions = tuple(conditions)


def stalled_status(before: Mapping[str, Any], blocker: Blocker, now: float) -> Status:
    """Return the status `before` with this blocker and the condition Stalled set, because no decision was made: the
    reconcile has failed, or the installation has a problem. The next decision sets all conditions again.

    The status of a job that has ended is unchanged: no user waits for it.
    """
    status = Status.model_validate(before, by_alias=True, by_name=False)
    if status.phase is not None and Phase(status.phase).final:
        return status
    kind, generation, text = ConditionType.STALLED, status.observed_generation, blocker.sentence[:_LONGEST]
    conditions = {condition.type: condition for condition in status.conditions}
    earlier = conditions.get(kind.value)
    stalled = condition_of(kind, True, blocker.reason.value, text, now, before=earlier, generation=generation)
    conditions[kind.value] = stalled
    return status.model_copy(update={"conditions": tuple(conditions.values()), "blocker": blocker.in_status()})


def _condition(
    kind: ConditionType, finding: Finding, state: JobState, now: float, before: Condition | None, generation: int
) -> Condition:
    reason, message = (state.reason, state.message) if finding.reason is None else (finding.reason, finding.message)
    text = message[:_LONGEST] or reason.sentence
    return condition_of(kind, finding.holds, reason.value, text, now, before=before, generation=generation)
