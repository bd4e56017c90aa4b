"""Transitions: find the changes of a job's status that a user wants to know.

They become Kubernetes Events and log lines (`event_recorder`):

    kubectl describe tsj NAME        kubectl get events --field-selector involvedObject.name=NAME

Progress and ε are not among them. They are in the status, and one Event for each step would hide the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensafe_api.reasons import ConditionType, EventReason, Phase
from tensafe_api.resources.status import Condition, Status
from tensafe_operator.decision.retry import has_failed


@dataclass(frozen=True)
class Transition:
    """One change of a status.

    Attributes:
        reason: why, in one CamelCase word.
        message: one sentence with the object.
        warning: whether a user should act.
        repeated: whether it is found again and again, perhaps with another message: one Event is enough.
    """

    reason: str
    message: str
    warning: bool = False
    repeated: bool = False

    @property
    def type(self) -> str:
        """The type of the Event."""
        return "Warning" if self.warning else "Normal"


def transitions_between(before: Status, after: Status) -> tuple[Transition, ...]:
    """Return the changes from `before` to `after`, in the order in which they happened."""
    return (*_attempt_transitions(before, after), *_result_transitions(before, after), *_job_transitions(before, after))


def _job_transitions(before: Status, after: Status) -> Iterator[Transition]:
    stalled = _condition(after, ConditionType.STALLED)
    if stalled is not None and stalled.status == "True":
        earlier = _condition(before, ConditionType.STALLED)
        if earlier is None or (earlier.status, earlier.reason) != ("True", stalled.reason):
            yield Transition(stalled.reason, stalled.message, warning=True)
    elif after.phase != before.phase and not _starts_an_attempt(before, after):
        ready = _condition(after, ConditionType.READY)
        yield Transition(str(after.phase), ready.message if ready is not None else "")


def _attempt_transitions(before: Status, after: Status) -> Iterator[Transition]:
    known = {each.number: each for each in before.attempts}
    for attempt in after.attempts:
        earlier = known.get(attempt.number)
        if attempt.start_time is not None and (earlier is None or earlier.start_time is None):
            message = f"attempt {attempt.number} starts as RayJob {attempt.ray_job_name}"
            yield Transition(EventReason.ATTEMPT_STARTED, message)
        ended_before = earlier is not None and earlier.end_time is not None
        if has_failed(attempt) and not ended_before:
            yield Transition(str(attempt.reason), f"attempt {attempt.number}: {attempt.message}", warning=True)


def _result_transitions(before: Status, after: Status) -> Iterator[Transition]:
    if after.final_model is not None and before.final_model is None:
        claimed = f"epsilon {after.privacy.epsilon_claimed} over {after.privacy.steps_claimed} steps"
        message = f"{after.final_model.uri}, with a privacy statement of {claimed}"
        yield Transition(EventReason.MODEL_RELEASED, message)


def _starts_an_attempt(before: Status, after: Status) -> bool:
    """Return whether the job starts because an attempt was recorded. Its own Event follows once its RayJob exists."""
    return after.phase == Phase.STARTING.value and len(after.attempts) > len(before.attempts)


def _condition(status: Status, kind: ConditionType) -> Condition | None:
    return next((each for each in status.conditions if each.type == kind.value), None)
