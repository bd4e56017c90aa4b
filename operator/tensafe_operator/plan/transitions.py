"""What of a change of a job's status a person would want to know: it becomes Kubernetes Events and log lines.

    kubectl describe tsj NAME        kubectl get events --field-selector involvedObject.name=NAME

Progress and ε are not among it: they are in the status, and an Event for each step would drown the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensafe_api.reasons import ConditionType, EventReason, Phase, Reason
from tensafe_api.resources.status import Attempt, Condition, Status

_WELL = (Reason.COMPLETED.value, Reason.INTERRUPTED.value)


@dataclass(frozen=True)
class Transition:
    """One thing to tell: a CamelCase reason, a sentence, and whether somebody should act."""

    reason: str
    message: str
    warning: bool = False

    @property
    def type(self) -> str:
        return "Warning" if self.warning else "Normal"


def transitions_between(before: Status, after: Status) -> tuple[Transition, ...]:
    """What is new in `after`, in the order in which it happened."""
    return (*_of_attempts(before, after), *_of_the_result(before, after), *_of_the_job(before, after))


def _of_the_job(before: Status, after: Status) -> Iterator[Transition]:
    stalled = _condition(after, ConditionType.STALLED)
    if stalled is not None and stalled.status == "True":
        earlier = _condition(before, ConditionType.STALLED)
        if earlier is None or (earlier.status, earlier.reason) != ("True", stalled.reason):
            yield Transition(stalled.reason, stalled.message, warning=True)
    elif after.phase != before.phase and not _begun(before, after):
        ready = _condition(after, ConditionType.READY)
        yield Transition(str(after.phase), ready.message if ready is not None else "")


def _of_attempts(before: Status, after: Status) -> Iterator[Transition]:
    known = {each.number: each for each in before.attempts}
    for attempt in after.attempts:
        earlier = known.get(attempt.number)
        if attempt.start_time is not None and (earlier is None or earlier.start_time is None):
            yield Transition(
                EventReason.ATTEMPT_STARTED, f"attempt {attempt.number} begins, as RayJob {attempt.ray_job_name}"
            )
        if _ended(attempt) and not (earlier is not None and _ended(earlier)) and attempt.reason not in _WELL:
            yield Transition(str(attempt.reason), f"attempt {attempt.number}: {attempt.message}", warning=True)


def _of_the_result(before: Status, after: Status) -> Iterator[Transition]:
    if after.final_model is not None and before.final_model is None:
        claimed = after.privacy.epsilon_claimed
        yield Transition(EventReason.MODEL_RELEASED, f"{after.final_model.uri}, with a statement of epsilon {claimed}")


def _begun(before: Status, after: Status) -> bool:
    """Whether it starts because an attempt is to begin, which is told once its RayJob is there."""
    return after.phase == Phase.STARTING.value and len(after.attempts) > len(before.attempts)


def _ended(attempt: Attempt) -> bool:
    return attempt.end_time is not None


def _condition(status: Status, kind: ConditionType) -> Condition | None:
    return next((each for each in status.conditions if each.type == kind.value), None)
