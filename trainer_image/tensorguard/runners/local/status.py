"""The job's status after a local run, from its ledger and the log of the run. It is pure: same records, same status.

This module translates the ledger and the log records into `JobRecords`; `tensafe_api.status_fold` computes the status
from them, as it does for the operator. Every privacy figure comes from the ledger's charges. The log gives progress,
times and public evaluations only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resolve import Plan
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.status import Attempt, EvaluationResult, Progress, Status, WorkerCount
from tensafe_api.status_fold import (
    JobRecords,
    KeptCheckpoint,
    conditions_of,
    evaluation_result,
    fold_records,
    progress_at,
)
from tensafe_api.timestamps import format_time
from tensorguard.ledger.contract import LedgerState
from tensorguard.training.run_log import Ended, Evaluated, LogRecord, Saved, Started, Stepped

_EXIT_CODES = {Phase.SUCCEEDED: 0, Phase.BUDGET_EXHAUSTED: 3, Phase.SUSPENDED: 130}


def exit_code_of(reason: Reason) -> int:
    """The exit code of `tensafe run` for a run that ended with `reason`."""
    return 3 if reason is Reason.PRIVACY_BUDGET_EXCEEDED else _EXIT_CODES.get(reason.phase, 1)


def fold_status(
    job: TenSafeTrainingJob, plan: Plan, ledger: LedgerState | None, events: Sequence[LogRecord], ended: Ended
) -> Status:
    """The status of `job`.

    Args:
        ledger: the job's ledger; None where it has none, or where it cannot be read.
        events: all log records of the job, oldest first.
        ended: how the last attempt ended.
    """
    phase = Reason(ended.reason).phase
    before = Status(
        observed_generation=job.metadata.generation or 0,
        phase=phase.value,
        conditions=conditions_of(phase, ended.reason, ended.message, ended.time),
        workers=WorkerCount(desired=job.spec.cluster.workers, ready=0),
        attempts=_attempts(events, ended),
        ledger_name=job.metadata.name if ledger else None,
        ledger_uid=ledger.spec.job_uid if ledger else None,
    )
    charged = None if _lost(ledger, events, ended) else (ledger.steps_charged if ledger else 0)
    records = JobRecords(
        steps_charged=charged,
        steps_recharged=ledger.steps_recharged if ledger else 0,
        progress=_progress(plan, events),
        evaluations=_evaluations(events),
        checkpoints=_checkpoints(events, job.spec.checkpoint.keep),
        published=ledger.checkpoints if ledger else (),
        dataset_digest=ledger.dataset_digest if ledger else None,
    )
    return fold_records(before, plan, records)


def _lost(ledger: LedgerState | None, events: Sequence[LogRecord], ended: Ended | None) -> bool:
    """Whether steps may have been charged and no readable ledger shows how many."""
    corrupt = ended is not None and ended.reason == Reason.LEDGER_CORRUPT
    return ledger is None and (corrupt or any(isinstance(event, Stepped) for event in events))


def _attempts(events: Sequence[LogRecord], ended: Ended) -> tuple[Attempt, ...]:
    """One entry for each call of the command that started workers, and one for the last call in any case."""
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
                start_time=format_time(began[0].time) if began else None,
                end_time=format_time(end.time) if end else None,
                reason=end.reason if end else Reason.WORKER_LOST.value,
                restarts=max(0, len(began) - 1),
                message=end.message if end else "the run was killed",
            )
        )
    return tuple(found[-64:])


def _progress(plan: Plan, events: Sequence[LogRecord]) -> Progress:
    last = next((event for event in reversed(events) if isinstance(event, Stepped)), None)
    if last is None:
        return Progress(step=0, total_steps=plan.steps, percent=0)
    return progress_at(last.step, plan.steps, last.time, steps_per_second(events))


def steps_per_second(events: Sequence[LogRecord]) -> float | None:
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


def _evaluations(events: Sequence[LogRecord]) -> tuple[EvaluationResult, ...]:
    """The latest result of each step: a step that is run again after a crash is evaluated again."""
    by_step = {event.step: event for event in events if isinstance(event, Evaluated) and math.isfinite(event.loss)}
    results = (evaluation_result(event.step, event.loss, event.metrics) for _, event in sorted(by_step.items()))
    return tuple(results)[-1000:]


def _checkpoints(events: Sequence[LogRecord], keep: int) -> tuple[KeptCheckpoint, ...]:
    """The checkpoints that are kept: the newest `keep` that are not final, and the final one."""
    saved: dict[str, Saved] = {}
    for event in events:
        if isinstance(event, Saved):
            saved.pop(event.uri, None)
            saved[event.uri] = event
    passing = [event for event in saved.values() if not event.final][-keep:]
    final = [event for event in saved.values() if event.final][-1:]
    return tuple(
        KeptCheckpoint(event.uri, event.step, event.digest, event.charged, event.time) for event in (*passing, *final)
    )
