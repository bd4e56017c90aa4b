"""Retry: what the end of an attempt means for the job, and when the next attempt may start.

An attempt that failed is repeated after a backoff, until `retry.maxAttempts` attempts have failed that had acquired the
ledger. One that failed before (no image, no model, a lost node) has spent nothing, and the job waits until the fault is
fixed, for as long as the ledger has numbers for attempts. An attempt that ended as `Interrupted` (a suspension, a
drained node) is not a failure: it is repeated at once, and not counted. A failure that every attempt would repeat ends
the job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.ledger import MAX_ATTEMPTS, LedgerStatus
from tensafe_api.resources.status import Attempt
from tensafe_api.timestamps import parse_time
from tensafe_operator.children import tls
from tensafe_operator.decision.attempts import Assessment, AttemptState, close
from tensafe_operator.decision.blockers import Blocker
from tensafe_operator.decision.conditions import JobState, blocked_state
from tensafe_operator.decision.draft import Draft
from tensafe_operator.decision.failed_pods import with_failed_pods
from tensafe_operator.decision.parsing import is_terminal

_FIRST_BACKOFF = 10.0
_LONGEST_BACKOFF = 300.0
_MANY_FAILURES = 24
_BACKOFF_AFTER_MANY = 3600.0
"""After two hours of failures an outage is a long one. Else the ledger's 64 numbers would be used up in five hours."""
_NOT_FAILURES = (Reason.INTERRUPTED.value, Reason.COMPLETED.value)
"""Reasons of attempts that ended without a failure."""


def has_failed(attempt: Attempt) -> bool:
    """Return whether an attempt that has ended failed."""
    return attempt.end_time is not None and attempt.reason not in _NOT_FAILURES


def backoff_end(attempts: Iterable[Attempt], last: Attempt) -> float:
    """Return when the attempt after `last` may start, in seconds since the epoch.

    The backoff doubles with each failure, from 10 s to 300 s. After 24 failures it is an hour.
    """
    ended, failures = parse_time(last.end_time) or 0.0, sum(map(has_failed, attempts))
    if not has_failed(last):
        return ended
    if failures > _MANY_FAILURES:
        return ended + _BACKOFF_AFTER_MANY
    return ended + min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2.0 ** (failures - 1))


def state_after(
    assessment: Assessment,
    attempts: Sequence[Attempt],
    acquired: Collection[int],
    max_attempts: int,
    *,
    suspend: bool,
) -> JobState:
    """Return the state of a job whose last attempt has ended.

    Args:
        attempts: all attempts, the one that has just ended last.
        acquired: the numbers of the attempts that acquired the ledger.
        suspend: whether the manifest asks for suspension.
    """
    match assessment.state:
        case AttemptState.SUCCEEDED:
            return JobState(Phase.SUCCEEDED, Reason.COMPLETED)
        case AttemptState.EXHAUSTED:
            return JobState(Phase.BUDGET_EXHAUSTED, Reason.BUDGET_EXHAUSTED)
        case AttemptState.SUSPENDED if suspend:
            return JobState(Phase.SUSPENDED, Reason.SUSPENDED)
        case AttemptState.SUSPENDED:
            return JobState(Phase.STARTING, Reason.RETRYING)
    return state_after_failure(attempts, acquired, max_attempts)


def state_after_failure(attempts: Sequence[Attempt], acquired: Collection[int], max_attempts: int) -> JobState:
    """Return the state of a job whose last attempt has failed. The arguments are those of `state_after`."""
    last = attempts[-1]
    reason, name = Reason.named(last.reason) or Reason.WORKER_LOST, f"attempt {last.number}"
    message = last.message or reason.sentence
    if reason is Reason.DEADLINE_EXCEEDED or reason.permanent:
        return blocked_state(Blocker(reason, name, message), Phase.FAILED)
    if sum(has_failed(each) and each.number in acquired for each in attempts) >= max_attempts:
        most = f"{message.rstrip('.')} (retry.maxAttempts is {max_attempts})"
        return blocked_state(Blocker(Reason.ATTEMPTS_EXHAUSTED, name, most), Phase.FAILED)
    return JobState(Phase.STARTING, Reason.RETRYING, f"{name}: {message}")


def out_of_numbers(last: Attempt | None) -> JobState:
    """Return the state of a job whose ledger can record no further attempt after `last`."""
    message = f"a ledger records at most {MAX_ATTEMPTS} attempts, with those that were suspended or spent nothing"
    if last is not None and last.message:
        message += f"; attempt {last.number}: {last.message.rstrip('.')}"
    return blocked_state(Blocker(Reason.ATTEMPTS_EXHAUSTED, "", message), Phase.FAILED)


def end_attempt(
    draft: Draft, job: TenSafeTrainingJob, attempt: Attempt, assessment: Assessment, record: LedgerStatus | None
) -> None:
    """Record the end of an attempt, delete its Secret and a RayJob that still runs, and set what that means.

    A job does not end here while its workers may still charge: the next decision ends it (`_decide_next_attempt`), with
    the ε of exactly its charged steps. This deletion does not wait for that.
    """
    draft.irreversible = True
    draft.status.suspend_requested_time = None
    assessment = with_failed_pods(assessment, attempt)
    draft.record(close(attempt, assessment, draft.now))
    spec, ray_job = job.spec, draft.ray_job_of(attempt)
    runs = ray_job is not None and not is_terminal(ray_job)
    if ray_job is None:
        # The RayJob named the Secret. After a restart the operator no longer knows the name, and the Secret goes with
        # the job.
        draft.delete_tls_secret_named(tls.secret_name(job, attempt.number))
    else:
        draft.delete_tls_secret(ray_job)
        if runs:  # one that has ended is kept for its logs
            draft.delete(ray_job)
    most = spec.retry.max_attempts
    state = state_after(assessment, draft.status.attempts, acquired_attempts(record), most, suspend=spec.suspend)
    if not (state.phase.final and runs):
        draft.set_state(state)


def acquired_attempts(record: LedgerStatus | None) -> list[int]:
    """Return the numbers of the attempts that have acquired the ledger."""
    return [charge.attempt for charge in record.charges] if record is not None else []
