"""The job's status after a local run, from its ledger and the log of the run. It is pure: same records, same status.

This module translates the ledger and the log records into `JobRecords`; `tensafe_api.job_status` computes the status
from them, as it does for the operator. Every privacy figure comes from the ledger's charges. The log gives progress,
times and public evaluations only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensafe_api.job_status import (
    JobRecords,
    KeptCheckpoint,
    conditions_of,
    evaluation_result,
    progress_at,
    status_from_records,
)
from tensafe_api.reasons import Phase, Reason
from tensafe_api.resolve import Plan
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.status import Attempt, EvaluationResult, Progress, Status, WorkerCount
from tensafe_api.timestamps import format_time
from tensorguard.ledger.contract import LedgerState, PublishedCheckpoint
from tensorguard.training.run_log import Ended, Evaluated, LogRecord, Saved, Started, Stepped

_EXIT_CODES = {Phase.SUCCEEDED: 0, Phase.BUDGET_EXHAUSTED: 3, Phase.SUSPENDED: 130}


def exit_code_of(reason: Reason) -> int:
    """The exit code of `tensafe run` for a run that ended with `reason`."""
    return 3 if reason is Reason.PRIVACY_BUDGET_EXCEEDED else _EXIT_CODES.get(reason.phase, 1)


def status_from_run(
    job: TenSafeTrainingJob, plan: Plan, ledger: LedgerState | None, records: Sequence[LogRecord], ended: Ended
) -> Status:
    """The status of `job`.

    Args:
        ledger: the job's ledger; None where it has none, or where it cannot be read.
        records: all log records of the job, oldest first.
        ended: how the last attempt ended.
    """
    phase = Reason(ended.reason).phase
    before = Status(
        observed_generation=job.metadata.generation or 0,
        phase=phase.value,
        conditions=conditions_of(phase, ended.reason, ended.message, ended.time),
        completion_time=format_time(ended.time) if phase.final else None,
        workers=WorkerCount(desired=job.spec.cluster.workers, ready=0),
        attempts=_attempts(records, ended),
        ledger_name=job.metadata.name if ledger else None,
        ledger_uid=ledger.spec.job_uid if ledger else None,
    )
    charged = None if _lost(ledger, records, ended) else (ledger.steps_charged if ledger else 0)
    job_records = JobRecords(
        steps_charged=charged,
        steps_recharged=ledger.steps_recharged if ledger else 0,
        progress=_progress(plan, records),
        evaluations=_evaluations(records),
        checkpoints=_checkpoints(records, job.spec.checkpoint.keep, ledger.checkpoints if ledger else ()),
        published=ledger.checkpoints if ledger else (),
        dataset_digest=ledger.dataset_digest if ledger else None,
        model_weights=ledger.model_weights if ledger else None,
        chat_template_digest=ledger.chat_template_digest if ledger else None,
    )
    return status_from_records(before, plan, job_records)


def _lost(ledger: LedgerState | None, records: Sequence[LogRecord], ended: Ended | None) -> bool:
    """Whether steps may have been charged and no readable ledger shows how many."""
    corrupt = ended is not None and ended.reason == Reason.LEDGER_CORRUPT
    return ledger is None and (corrupt or any(isinstance(record, Stepped) for record in records))


def _attempts(records: Sequence[LogRecord], ended: Ended) -> tuple[Attempt, ...]:
    """One entry for each call of the command that started workers, and one for the last call in any case."""
    starts: dict[int, list[Started]] = {}
    ends: dict[int, Ended] = {}
    for record in records:
        if isinstance(record, Started):
            starts.setdefault(record.attempt, []).append(record)
        elif isinstance(record, Ended):
            ends[record.attempt] = record
    ends[ended.attempt] = ended
    found = []
    for number in sorted(starts.keys() | ends.keys()):
        started, end = starts.get(number, []), ends.get(number)
        found.append(
            Attempt(
                number=number,
                start_time=format_time(started[0].time) if started else None,
                end_time=format_time(end.time) if end else None,
                reason=end.reason if end else Reason.WORKER_LOST.value,
                restarts=max(0, len(started) - 1),
                message=end.message if end else "the run was killed",
            )
        )
    return tuple(found[-64:])


def _progress(plan: Plan, records: Sequence[LogRecord]) -> Progress:
    last = next((record for record in reversed(records) if isinstance(record, Stepped)), None)
    if last is None:
        return Progress(step=0, total_steps=plan.steps, percent=0)
    return progress_at(last.step, plan.steps, last.time, steps_per_second(records))


def steps_per_second(records: Sequence[LogRecord]) -> float | None:
    """The speed since the last start; None before its second step."""
    steps: list[Stepped] = []
    for record in reversed(records):
        if isinstance(record, Started):
            break
        if isinstance(record, Stepped):
            steps.append(record)
    if len(steps) < 2 or steps[0].time <= steps[-1].time:
        return None
    return (steps[0].step - steps[-1].step) / (steps[0].time - steps[-1].time)


def _evaluations(records: Sequence[LogRecord]) -> tuple[EvaluationResult, ...]:
    """The latest result of each step: a step that is run again after a crash is evaluated again."""
    evaluated = (record for record in records if isinstance(record, Evaluated))
    by_step = {record.step: record for record in evaluated if math.isfinite(record.loss)}
    results = (evaluation_result(record.step, record.loss, record.metrics) for _, record in sorted(by_step.items()))
    return tuple(results)[-1000:]


def _checkpoints(
    records: Sequence[LogRecord], keep: int, published: Sequence[PublishedCheckpoint]
) -> tuple[KeptCheckpoint, ...]:
    """The checkpoints that are kept: the newest `keep` that are not final, and the final one."""
    saved: dict[str, Saved] = {}
    for record in records:
        if isinstance(record, Saved):
            saved.pop(record.uri, None)
            saved[record.uri] = record
    passing = [record for record in saved.values() if not record.final][-keep:]
    final = [record for record in saved.values() if record.final][-1:]
    signers = {(each.uri, each.digest): each.signer for each in published}
    return tuple(
        KeptCheckpoint(
            each.uri, each.step, each.digest, each.charged, each.time, signer=signers.get((each.uri, each.digest))
        )
        for each in (*passing, *final)
    )
