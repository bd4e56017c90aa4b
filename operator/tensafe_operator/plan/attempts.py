"""How one attempt stands: from its RayJob and the ledger to a verdict.

Success is only what both say: Ray that the job SUCCEEDED, and the ledger that it is Completed with a final release.
KubeRay's message is repeated only where it is KubeRay's own: for a job that failed it is the end of the driver's log,
which may carry records. Of that nothing but the exit code is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from tensafe_api.reasons import Reason, reason_for_exit_code
from tensafe_api.resources.ledger import LedgerStatus
from tensafe_api.timestamps import parse_time
from tensafe_operator.plan.observed import Object

_EXIT_CODE = re.compile(r"exit code (\d{1,3})\b")
_MORE = "The driver's last lines are in its RayJob's status.message."
"""They may quote records, so they are read there, by whoever may, and never copied."""
_LONGEST_MESSAGE = 512
_OF_KUBERAY = {
    "ValidationFailed": Reason.VALIDATION_FAILED,
    "PreRunningDeadlineExceeded": Reason.RESOURCES_MISSING,
    "DeadlineExceeded": Reason.DEADLINE_EXCEEDED,
}


class State(StrEnum):
    """Where an attempt is."""

    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    EXHAUSTED = "Exhausted"
    SUSPENDED = "Suspended"
    FAILED = "Failed"

    @property
    def over(self) -> bool:
        return self in (State.SUCCEEDED, State.EXHAUSTED, State.SUSPENDED, State.FAILED)


@dataclass(frozen=True)
class Verdict:
    """How an attempt stands, why, and when to look again at the latest."""

    state: State
    reason: Reason
    message: str = ""
    exit_code: int | None = None
    wake: float | None = None


def judge(ray_job: Object, ledger: LedgerStatus | None, number: int, now: float, stall_seconds: int) -> Verdict:
    """How attempt `number` stands, by its RayJob and the ledger."""
    status = ray_job.get("status") or {}
    claimed = ledger is not None and ledger.attempt == number
    if status.get("jobStatus") == "SUCCEEDED":
        return _ended_well(ledger if claimed else None)
    deployment = status.get("jobDeploymentStatus") or ""
    if status.get("jobStatus") in ("FAILED", "STOPPED") or deployment in ("Failed", "ValidationFailed"):
        if claimed and ledger is not None and ledger.outcome == "Suspended":
            return Verdict(State.SUSPENDED, Reason.INTERRUPTED)  # its pods were gone before the driver had heard so
        return _failed(status)
    if (ray_job.get("spec") or {}).get("suspend"):
        return Verdict(State.QUEUED, Reason.QUEUED)
    if claimed and ledger is not None and _charged(ledger, number):
        return _running(ledger, now, stall_seconds)
    return _starting(status, deployment, now, stall_seconds)


def _ended_well(ledger: LedgerStatus | None) -> Verdict:
    final = ledger is not None and any(release.final for release in ledger.releases)
    match ledger.outcome if ledger is not None else None:
        case "Completed" if final:
            return Verdict(State.SUCCEEDED, Reason.COMPLETED)
        case "BudgetExhausted" if final:
            return Verdict(State.EXHAUSTED, Reason.BUDGET_EXHAUSTED)
        case "Suspended":
            return Verdict(State.SUSPENDED, Reason.INTERRUPTED)
    return Verdict(State.FAILED, Reason.INTERNAL_ERROR, "Ray says that the job succeeded, and its ledger does not")


def _failed(status: Object) -> Verdict:
    said, message = str(status.get("reason") or ""), str(status.get("message") or "")
    found = _EXIT_CODE.search(message)
    exit_code = int(found[1]) if found else None
    if exit_code is not None and (reason := reason_for_exit_code(exit_code)):
        return Verdict(State.FAILED, reason, f"{reason.sentence} {_MORE}", exit_code)
    if status.get("jobDeploymentStatus") == "ValidationFailed":
        said = "ValidationFailed"
    if reason := _OF_KUBERAY.get(said):
        return Verdict(State.FAILED, reason, f"KubeRay: {message}"[:_LONGEST_MESSAGE] if message else reason.sentence)
    words = f"KubeRay says {said}" if said else f"Ray says {status.get('jobStatus')}"
    return Verdict(State.FAILED, Reason.WORKER_LOST, words, exit_code)


def _starting(status: Object, deployment: str, now: float, stall_seconds: int) -> Verdict:
    """Before the first charge the model and the data are fetched and read: that may take as long as a charge may."""
    began = parse_time((status.get("rayJobInfo") or {}).get("startTime") or status.get("startTime"))
    if deployment != "Running" or began is None:
        return Verdict(State.STARTING, Reason.STARTING)
    if now >= began + stall_seconds:
        return Verdict(State.FAILED, Reason.WORKER_LOST, f"no step was charged within {stall_seconds} s of the start")
    return Verdict(State.STARTING, Reason.STARTING, wake=began + stall_seconds)


def _running(ledger: LedgerStatus, now: float, stall_seconds: int) -> Verdict:
    last = parse_time(ledger.progress.last_update_time)
    if last is None:
        return Verdict(State.RUNNING, Reason.TRAINING)
    if now >= last + stall_seconds:
        return Verdict(State.FAILED, Reason.WORKER_LOST, f"no step was charged for {stall_seconds} s")
    return Verdict(State.RUNNING, Reason.TRAINING, wake=last + stall_seconds)


def _charged(ledger: LedgerStatus, number: int) -> int:
    return next((charge.steps for charge in ledger.charges if charge.attempt == number), 0)
