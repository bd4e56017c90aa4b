"""A ledger that writes each of its changes to the audit log, after the ledger has accepted it.

The entries are derived from the state that a write returns, never from what was asked for: a charge that the ledger
refuses cannot be logged, and one that it accepts cannot be logged as another. A kill between the two writes leaves an
entry missing. The next holder adds it, marked as recovered, before its own.
"""

from __future__ import annotations

from tensafe_api.resources.ledger import Outcome
from tensafe_api.resources.status import EvaluationResult, Progress
from tensorguard.audit_log.ledger_events import missing_entries
from tensorguard.audit_log.log import AuditLog
from tensorguard.ledger.contract import Ledger, LedgerCorrupt, LedgerState, PublishedCheckpoint
from tensorguard.ledger.file import FileLedger


class AuditedLedger:
    """A `contract.Ledger`: `ledger`, with `log` beside it."""

    def __init__(self, ledger: Ledger, log: AuditLog) -> None:
        self._ledger = ledger
        self.log = log

    @property
    def max_checkpoints(self) -> int | None:
        return self._ledger.max_checkpoints

    @max_checkpoints.setter
    def max_checkpoints(self, value: int | None) -> None:
        self._ledger.max_checkpoints = value

    def read(self) -> LedgerState:
        return self._ledger.read()

    def extends(self, head: str, length: int) -> bool:
        return self._ledger.extends(head, length)

    def acquire(self, *, attempt: int, from_step: int) -> LedgerState:
        """As `contract.Ledger.acquire`. Adds what an earlier holder could not log.

        Raises:
            LedgerCorrupt: also if the log has writes that the ledger lacks.
        """
        self.log.load()
        self._check_continues()
        before = self._ledger.read()
        state = self._ledger.acquire(attempt=attempt, from_step=from_step)
        self.log.load()
        self._check_continues()
        for known in self._ledger.history() if isinstance(self._ledger, FileLedger) else (before, state):
            self._log_changes(known, recovered=1 < known.length < state.length)
        return state

    def charge(self, steps: int) -> LedgerState:
        return self._log_changes(self._ledger.charge(steps))

    def record_dataset(self, digest: str) -> LedgerState:
        return self._log_changes(self._ledger.record_dataset(digest))

    def record_model(self, weights: str, chat_template: str | None) -> LedgerState:
        return self._log_changes(self._ledger.record_model(weights, chat_template))

    def record_checkpoint(self, checkpoint: PublishedCheckpoint) -> LedgerState:
        return self._log_changes(self._ledger.record_checkpoint(checkpoint))

    def record_outcome(self, outcome: Outcome) -> LedgerState:
        return self._log_changes(self._ledger.record_outcome(outcome))

    def set_progress(self, progress: Progress, evaluation: EvaluationResult | None = None) -> None:
        self._ledger.set_progress(progress, evaluation)

    def wait_until_free(self) -> None:
        self._ledger.wait_until_free()

    def close(self) -> None:
        self._ledger.close()

    def _log_changes(self, state: LedgerState, *, recovered: bool = False) -> LedgerState:
        while missing := missing_entries(self.log.position, state):
            self.log.append(*missing[0], recovered=recovered)  # another process may add one: what is missing may change
        return state

    def _check_continues(self) -> None:
        """Check that the ledger has all the writes that the log has: the ledger may have been rolled back."""
        position = self.log.position
        if position.length and not self._ledger.extends(position.head, position.length):
            raise LedgerCorrupt(
                f"the ledger is not the one that {self.log.name} was written with: that names entry {position.length} "
                "of the ledger, which it lacks or has another in its place; restore the latest ledger, since what was "
                "spent stays spent"
            )
