"""Attempts: find the state of one from its RayJob and the ledger, and number the next.

An attempt succeeds only when both agree: Ray reports SUCCEEDED, and the ledger records a final outcome with a final
checkpoint. KubeRay's message is repeated only where KubeRay wrote it: for a failed driver it is the end of the driver's
log, which may quote records. Of that text only the exit code is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tensafe_api.driver_exit_codes import reason_for_exit_code
from tensafe_api.reasons import Reason
from tensafe_api.resources.ledger import MAX_ATTEMPTS, LedgerStatus
from tensafe_api.resources.status import Attempt
from tensafe_api.timestamps import format_time, parse_time
from tensafe_operator import names
from tensafe_operator.decision.observation import Object

_EXIT_CODE = re.compile(r"exit code (-?\d{1,3})\b")
_WHERE_TO_READ_MORE = "The last lines of the driver's log are in the RayJob's status.message."
"""They may quote records, so they are never copied. A user who may read RayJobs reads them there."""
_LONGEST_MESSAGE = 512
_LONGEST_NAME = 253
_KUBERAY_REASONS = {
    "ValidationFailed": Reason.VALIDATION_FAILED,
    "DeadlineExceeded": Reason.DEADLINE_EXCEEDED,
}


class AttemptState(StrEnum):
    """The state of an attempt."""

    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    EXHAUSTED = "Exhausted"
    SUSPENDED = "Suspended"
    FAILED = "Failed"

    @property
    def over(self) -> bool:
        """Whether the attempt has ended."""
        return self in (AttemptState.SUCCEEDED, AttemptState.EXHAUSTED, AttemptState.SUSPENDED, AttemptState.FAILED)


@dataclass(frozen=True)
class Assessment:
    """The state of an attempt, the reason, and the latest time at which to assess it again (seconds since the epoch;
    None: when its RayJob or the ledger changes).
    """

    state: AttemptState
    reason: Reason
    message: str = ""
    exit_code: int | None = None
    wake: float | None = None


def assess(ray_job: Object, ledger: LedgerStatus | None, number: int, now: float, stall_seconds: int) -> Assessment:
    """Find the state of attempt `number` from its RayJob and the ledger.

    Args:
        now: seconds since the epoch.
        stall_seconds: an attempt that charges no step for so many seconds has failed.
    """
    status = ray_job.get("status") or {}
    acquired = ledger is not None and ledger.attempt == number
    if status.get("jobStatus") == "SUCCEEDED":
        return _assess_success(ledger if acquired else None)
    deployment = status.get("jobDeploymentStatus") or ""
    if status.get("jobStatus") in ("FAILED", "STOPPED") or deployment in ("Failed", "ValidationFailed"):
        if acquired and ledger is not None and ledger.outcome == "Suspended":
            # The pods terminated before the driver received the end of the workers, so Ray reports a failure.
            return Assessment(AttemptState.SUSPENDED, Reason.INTERRUPTED)
        return _assess_failure(status)
    if is_queued(ray_job):
        return Assessment(AttemptState.QUEUED, Reason.QUEUED)
    if deployment != "Running":
        return Assessment(AttemptState.STARTING, Reason.STARTING)  # also after a time in the queue
    started = parse_time((status.get("rayJobInfo") or {}).get("startTime") or status.get("startTime"))
    if acquired and ledger is not None and _steps_charged(ledger, number):
        stepped = parse_time(ledger.progress.last_update_time)
        since = started or parse_time(ray_job["metadata"].get("creationTimestamp"))
        if stepped is not None and since is not None and stepped < since:
            stepped = None  # of an earlier attempt, or before a time in the queue
        return _assess_steps(started, stepped, now, stall_seconds)
    return _check_progress(Assessment(AttemptState.STARTING, Reason.STARTING), started, "start", now, stall_seconds)


def refresh(attempt: Attempt, ray_job: Object, record: LedgerStatus | None, now: float) -> Attempt:
    """Return the status entry of an open attempt with its start, its time in the queue, its restarts and its
    RayCluster.
    """
    started = attempt.start_time or ray_job["metadata"].get("creationTimestamp") or format_time(now)
    charges = record.charges if record is not None else ()
    restarts = next((charge.incarnation - 1 for charge in charges if charge.attempt == attempt.number), 0)
    changes = {"start_time": started, "restarts": restarts}
    if cluster := (ray_job.get("status") or {}).get("rayClusterName"):
        changes["ray_cluster_name"] = cluster[:_LONGEST_NAME]
    if not is_queued(ray_job):
        changes |= _out_of_queue(attempt, now)
    elif attempt.queued_since is None:
        changes["queued_since"] = started if attempt.start_time is None else format_time(now)
    return attempt.model_copy(update=changes)


def close(attempt: Attempt, assessment: Assessment, now: float) -> Attempt:
    """Return the status entry of an attempt that ends now."""
    ended = {
        "end_time": format_time(now),
        "reason": assessment.reason.value,
        "message": assessment.message or assessment.reason.sentence,
        "exit_code": assessment.exit_code,
        **_out_of_queue(attempt, now),
    }
    return attempt.model_copy(update=ended)


def is_queued(ray_job: Object) -> bool:
    """Return whether a queue such as Kueue holds the RayJob back."""
    return bool((ray_job.get("spec") or {}).get("suspend"))


def _out_of_queue(attempt: Attempt, now: float) -> dict[str, Any]:
    """What changes in an entry whose attempt leaves its queue now; nothing where it is in none."""
    since = parse_time(attempt.queued_since)
    if since is None:
        return {}
    return {"queued_since": None, "queued_seconds": (attempt.queued_seconds or 0) + max(0, round(now - since))}


def next_attempt(
    job: str, attempts: Iterable[Attempt], ray_jobs: Iterable[Object], record: LedgerStatus | None
) -> Attempt | None:
    """Return the next attempt of a job, numbered above every attempt that the status, a RayJob or the ledger knows.

    Returns:
        None where the ledger can record no further attempt.
    """
    existing = [names.attempt_named(job, each["metadata"]["name"]) for each in ray_jobs]
    number = 1 + max([_last_number(attempts, record), *existing])
    return Attempt(number=number, ray_job_name=names.ray_job_name(job, number)) if number <= MAX_ATTEMPTS else None


def _last_number(attempts: Iterable[Attempt], record: LedgerStatus | None) -> int:
    """The number of the last attempt that the status or the ledger knows."""
    return max([0, *(attempt.number for attempt in attempts), record.attempt if record is not None else 0])


def _assess_success(ledger: LedgerStatus | None) -> Assessment:
    final = ledger is not None and any(release.final for release in ledger.releases)
    match ledger.outcome if ledger is not None else None:
        case "Completed" if final:
            return Assessment(AttemptState.SUCCEEDED, Reason.COMPLETED)
        case "BudgetExhausted" if final:
            return Assessment(AttemptState.EXHAUSTED, Reason.BUDGET_EXHAUSTED)
        case "Suspended":
            return Assessment(AttemptState.SUSPENDED, Reason.INTERRUPTED)
    message = "Ray reports success, but the ledger records no final checkpoint"
    return Assessment(AttemptState.FAILED, Reason.INTERNAL_ERROR, message)


def _assess_failure(status: Object) -> Assessment:
    cause, message = str(status.get("reason") or ""), str(status.get("message") or "")
    found = _EXIT_CODE.search(message)
    exit_code = _exit_code(int(found[1])) if found else None
    if exit_code is not None and (reason := reason_for_exit_code(exit_code)):
        return Assessment(AttemptState.FAILED, reason, f"{reason.sentence} {_WHERE_TO_READ_MORE}", exit_code)
    if status.get("jobDeploymentStatus") == "ValidationFailed":
        cause = "ValidationFailed"
    if reason := _KUBERAY_REASONS.get(cause):
        text = f"KubeRay: {message}"[:_LONGEST_MESSAGE] if message else reason.sentence
        return Assessment(AttemptState.FAILED, reason, text)
    text = f"KubeRay reports {cause}" if cause else f"Ray reports {status.get('jobStatus')}"
    if exit_code is not None:
        text += f", and the driver's exit code is {exit_code}. {_WHERE_TO_READ_MORE}"
    elif message:
        text += ". The RayJob's status.message may say more."
    return Assessment(AttemptState.FAILED, Reason.WORKER_LOST, text, exit_code)


def _exit_code(reported: int) -> int:
    """The exit code as a shell has it. Ray reports -9 for a driver that signal 9 has ended."""
    return 128 - reported if reported < 0 else reported


def _assess_steps(started: float | None, stepped: float | None, now: float, stall_seconds: int) -> Assessment:
    """Assess an attempt that has charged steps.

    Args:
        started: when KubeRay started the RayJob. It starts it again when a queue admits it again.
        stepped: when the last step since then was over. The ledger gets this time with the charge of the steps that
            follow. So it has none while the first steps run: the load before them, which is limited too, may have taken
            all of its time.
    """
    training = Assessment(AttemptState.RUNNING, Reason.TRAINING)
    if stepped is None:
        text = f"the first steps were not over within {2 * stall_seconds} s of the start, twice the chart's value "
        return _check_time(training, started, 2 * stall_seconds, f"{text}stallSeconds", now)
    return _check_progress(training, stepped, "last step", now, stall_seconds)


def _check_progress(
    assessment: Assessment, since: float | None, last: str, now: float, stall_seconds: int
) -> Assessment:
    """Return `assessment`, or that of an attempt that has charged nothing for too long. Loading the model and the data
    may take as long as a charge may.

    Args:
        last: what happened at `since`.
    """
    text = f"no step was charged within {stall_seconds} s of the {last}, the limit of the chart's value stallSeconds"
    return _check_time(assessment, since, stall_seconds, text, now)


def _check_time(assessment: Assessment, since: float | None, limit: int, text: str, now: float) -> Assessment:
    """Return `assessment`, or that of an attempt that has failed: `limit` seconds after `since` (seconds since the
    epoch; None: there is no limit). `text` says so.
    """
    if since is None:
        return assessment
    if now < since + limit:
        return replace(assessment, wake=since + limit)
    return Assessment(AttemptState.FAILED, Reason.WORKER_LOST, text)


def _steps_charged(ledger: LedgerStatus, number: int) -> int:
    return next((charge.steps for charge in ledger.charges if charge.attempt == number), 0)
