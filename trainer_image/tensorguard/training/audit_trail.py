"""What rank 0 writes to the audit log besides the ledger's writes: keys, evaluations, and how the attempt failed.

On every other rank, and in a job that keeps no audit log, nothing is written.
"""

from __future__ import annotations

import logging

from tensafe_api.reasons import Phase, Reason
from tensorguard.aggregation.protocol import SecureAggregator
from tensorguard.audit_log.audited_ledger import AuditedLedger
from tensorguard.audit_log.entries import Event
from tensorguard.audit_log.log import AuditLog
from tensorguard.audit_log.places import audit_log_of
from tensorguard.ledger.contract import Ledger
from tensorguard.training.config import WorkerConfig

_LOST = (
    Reason.WORKER_LOST,
    Reason.INTERNAL_ERROR,
    Reason.LEDGER_UNREACHABLE,
    Reason.AGGREGATION_FAILED,
    Reason.DISK_FULL,
)
"""Reasons of an end that no check decided: a resume may continue."""
log = logging.getLogger(__name__)


class AuditTrail:
    """The audit log as one attempt of one worker uses it. `incarnation`: as which it has acquired the ledger."""

    def __init__(self, audit_log: AuditLog | None, attempt: int | None) -> None:
        self._log = audit_log
        self._attempt = attempt
        self.incarnation: int | None = None

    @classmethod
    def of(cls, config: WorkerConfig, rank: int) -> AuditTrail:
        """That of this worker."""
        if rank != 0:
            return cls(None, config.attempt)
        in_pod = config.ledger_location is not None
        found = audit_log_of(config.parse_job(), config.job_uid, config.directory, in_pod=in_pod, process="rank 0")
        return cls(found, config.attempt)

    def watch(self, ledger: Ledger) -> Ledger:
        """`ledger`, such that each of its writes is logged."""
        return ledger if self._log is None else AuditedLedger(ledger, self._log)

    @property
    def position(self) -> tuple[str, int] | None:
        """Head and length of the log; None without one."""
        return None if self._log is None else (self._log.head, self._log.length)

    def log_keys(self, aggregator: SecureAggregator, workers: int) -> None:
        """Log that the workers agreed on keys, with the fingerprints of the public ones."""
        if self._log is not None:
            keys = list(aggregator.public_keys)
            self._append(Event.KEY_AGREEMENT, protocol=aggregator.name, workers=workers, publicKeys=keys)

    def log_evaluation(self, step: int, visibility: str) -> None:
        """Log that the model of `step` was evaluated, and on what kind of data; no result."""
        self._append(Event.EVALUATION, step=step, visibility=visibility)

    def log_failure(self, reason: Reason, message: str) -> None:
        """Log why the attempt has failed. A log that cannot be written does not hide that reason."""
        if reason.phase is not Phase.FAILED:
            return
        try:
            self._append(event_of(reason), reason=reason.value, message=message)
        except Exception as error:
            log.warning("the audit log has no entry of the end of this attempt: %s", error)

    def _append(self, event: Event, **values: object) -> None:
        if self._log is not None:
            self._log.load()
            self._log.append(event, {"attempt": self._attempt, "incarnation": self.incarnation, **values})


def event_of(reason: Reason) -> Event:
    """How an audit log names an end with this reason: the run was lost, or it was refused."""
    return Event.INTERRUPTION if reason in _LOST else Event.REFUSAL
