"""The job's status, folded from its ledger and its event log: pure, so that it says the same whenever it is asked.

Every privacy figure is recomputed here from the ledger's charges; the event log only tells of progress, times and
public evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from tensafe_api import accounting
from tensafe_api.reasons import ConditionType, Phase, Reason
from tensafe_api.resolve import Plan
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.status import (
    Attempt,
    CheckpointRecord,
    Condition,
    EvaluationResult,
    FinalModel,
    PrivacyStatus,
    Progress,
    Resolved,
    Status,
    WorkerCount,
)
from tensorguard.ledger.contract import LedgerState
from tensorguard.training.run_log import Ended, Evaluated, Event, Saved, Started, Stepped

_EXIT_CODES = {Phase.SUCCEEDED: 0, Phase.BUDGET_EXHAUSTED: 3, Phase.SUSPENDED: 130}


def exit_code_of(reason: Reason) -> int:
    """What `tensafe run` returns for it."""
    return 3 if reason is Reason.PRIVACY_BUDGET_EXCEEDED else _EXIT_CODES.get(reason.phase, 1)


def fold_status(
    job: TenSafeTrainingJob, plan: Plan, ledger: LedgerState | None, events: Sequence[Event], ended: Ended
) -> Status:
    """What has become of `job`: its ledger (None where it never got one), all its events, and how the last attempt
    ended.
    """
    reason = Reason(ended.reason)
    phase = reason.phase
    final = next((release for release in reversed(ledger.checkpoints) if release.final), None) if ledger else None
    return Status(
        observed_generation=job.metadata.generation or 0,
        phase=phase.value,
        conditions=_conditions(phase, ended),
        workers=WorkerCount(desired=job.spec.cluster.workers, ready=0),
        resolved=Resolved(dataset_digest=ledger.dataset_digest if ledger else None),
        attempts=_attempts(events, ended),
        privacy=_of_lost_ledger(plan) if _lost(ledger, events, ended) else _privacy(plan, ledger),
        progress=_progress(plan, events),
        evaluations=_evaluations(events),
        checkpoints=_checkpoints(plan, events, job.spec.checkpoint.keep),
        final_model=FinalModel(
            uri=final.uri,
            digest=final.digest,
            statement_uri=f"{final.uri}/statement.json",
            statement_digest=final.statement_digest,
        )
        if final
        else None,
        ledger_name=job.metadata.name if ledger else None,
        ledger_uid=ledger.spec.job_uid if ledger else None,
    )


def _privacy(plan: Plan, ledger: LedgerState | None) -> PrivacyStatus:
    return plan.privacy_status(
        charged=ledger.steps_charged if ledger else 0, recharged=ledger.steps_recharged if ledger else 0
    )


def _lost(ledger: LedgerState | None, events: Sequence[Event], ended: Ended | None) -> bool:
    """Whether nothing that can be believed tells what was charged."""
    corrupt = ended is not None and ended.reason == Reason.LEDGER_CORRUPT
    return ledger is None and (corrupt or any(isinstance(event, Stepped) for event in events))


def _of_lost_ledger(plan: Plan) -> PrivacyStatus:
    """The plan's figures alone: what was spent is absent where nobody knows it, never zero."""
    return _privacy(plan, None).model_copy(
        update={
            "epsilon_claimed": None,
            "epsilon_spent": None,
            "epsilon_against_outsider": None,
            "steps_charged": None,
            "steps_recharged": None,
        }
    )


def _conditions(phase: Phase, ended: Ended) -> tuple[Condition, ...]:
    good = phase in (Phase.SUCCEEDED, Phase.BUDGET_EXHAUSTED)
    states = {
        ConditionType.READY: good,
        ConditionType.SUCCEEDED: good,
        ConditionType.FAILED: phase is Phase.FAILED,
    }
    return tuple(
        Condition(
            type=kind.value,
            status=str(holds),
            reason=ended.reason,
            message=ended.message,
            last_transition_time=timestamp(ended.time),
        )
        for kind, holds in states.items()
    )


def _attempts(events: Sequence[Event], ended: Ended) -> tuple[Attempt, ...]:
    """One entry for each call of the command that came as far as its workers, and one for the last in any case."""
    starts: dict[int, list[Started]] = {}
    ends: dict[int, Ended] = {}
    for event in events:
        if isinstance(event, Started):
            starts.setdefault(event.attempt, []).append(event)
        elif isinstance(event, Ended):
            ends[event.attempt] = event
    ends[ended.attempt] = ended
    found = []
    for number in sorted(starts.keys() | ends.keys()):
        began, end = starts.get(number, []), ends.get(number)
        found.append(
            Attempt(
                number=number,
                start_time=timestamp(began[0].time) if began else None,
                end_time=timestamp(end.time) if end else None,
                reason=end.reason if end else Reason.WORKER_LOST.value,
                restarts=max(0, len(began) - 1),
                message=end.message if end else "the run was killed",
            )
        )
    return tuple(found[-64:])


def _progress(plan: Plan, events: Sequence[Event]) -> Progress:
    last = next((event for event in reversed(events) if isinstance(event, Stepped)), None)
    if last is None:
        return Progress(step=0, total_steps=plan.steps, percent=0)
    speed = steps_per_second(events)
    return Progress(
        step=last.step,
        total_steps=plan.steps,
        percent=100 * last.step // plan.steps,
        steps_per_second=f"{speed:.4g}" if speed and speed >= 1e-3 else None,
        last_update_time=timestamp(last.time),
    )


def steps_per_second(events: Sequence[Event]) -> float | None:
    """The speed since the last start; None before its second step."""
    steps: list[Stepped] = []
    for event in reversed(events):
        if isinstance(event, Started):
            break
        if isinstance(event, Stepped):
            steps.append(event)
    if len(steps) < 2 or steps[0].time <= steps[-1].time:
        return None
    return (steps[0].step - steps[-1].step) / (steps[0].time - steps[-1].time)


def _evaluations(events: Sequence[Event]) -> tuple[EvaluationResult, ...]:
    """The last word on each step: a step that was run again is evaluated again."""
    by_step = {event.step: event for event in events if isinstance(event, Evaluated) and math.isfinite(event.loss)}
    return tuple(evaluation_result(event) for _, event in sorted(by_step.items()))[-1000:]


def evaluation_result(event: Evaluated) -> EvaluationResult:
    """An evaluation as a status shows it."""
    return EvaluationResult(
        step=event.step,
        loss=f"{event.loss:.4f}",
        accuracy=None if event.accuracy is None else f"{event.accuracy:.4f}",
    )


def _checkpoints(plan: Plan, events: Sequence[Event], keep: int) -> tuple[CheckpointRecord, ...]:
    """Those that are kept: the newest `keep`, and the final one."""
    saved: dict[str, Saved] = {}
    for event in events:
        if isinstance(event, Saved):
            saved.pop(event.uri, None)
            saved[event.uri] = event
    passing = [event for event in saved.values() if not event.final][-keep:]
    final = [event for event in saved.values() if event.final][-1:]
    return tuple(
        CheckpointRecord(
            uri=event.uri,
            step=event.step,
            epsilon=accounting.format_epsilon(plan.epsilon(event.charged)),
            digest=event.digest,
            time=timestamp(event.time),
        )
        for event in (*passing, *final)
    )


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as Kubernetes writes times."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
