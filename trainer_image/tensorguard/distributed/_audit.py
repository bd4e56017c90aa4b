"""The audit log: what a run spends and publishes, while it runs, as records of Python's logging.

In come the run's log records. Out goes one JSON object for each charge, checkpoint, evaluation, start and end, to the
standard logger `tensafe.audit` at level INFO. A run that is resumed first logs what its ledger holds. The program's
logging configuration decides where they are written. The authoritative record is the ledger in the run's folder, which
cannot be turned off. Charges and ε are read from it: a step may be charged and, after a crash, never appear in the log
records.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from tensafe_api import accounting
from tensorguard.ledger.contract import LedgerError, LedgerState
from tensorguard.ledger.file import FileLedger
from tensorguard.training.run_log import Ended, Evaluated, LogRecord, Saved, Started, Stepped

LOGGER = logging.getLogger("tensafe.audit")


class AuditLog:
    """Writes the log records and the charges of the run in `directory` to the logger."""

    def __init__(self, job_name: str, directory: Path) -> None:
        self._job = job_name
        self._ledger = FileLedger(directory)
        self._charged = 0
        self._resumes = self._read() is not None
        """Whether the run has a ledger already. What it holds is not a charge of this call."""

    def log(self, record: LogRecord) -> None:
        """Write what the ledger was charged since the last record, then `record` if an audit needs records of its kind.

        The ledger is not read for a step that an earlier charge covers.
        """
        if isinstance(record, Stepped):
            if record.charged > self._charged:
                self._log_charges(record)
        elif isinstance(record, Started | Saved | Evaluated | Ended):
            self._log_charges(record)
            self._write(record.kind, record, {name: value for name, value in record.values().items() if name != "time"})

    def _log_charges(self, record: LogRecord) -> None:
        state = self._read()
        if state is None:
            return
        kind, self._resumes = "resumed" if self._resumes else "charged", False
        if state.steps_charged > self._charged:
            self._charged = state.steps_charged
            spec = state.spec
            spent = accounting.job_epsilon(spec.mechanism, state.steps_charged, spec.delta, spec.accountant)
            fields = {"stepsCharged": state.steps_charged, "epsilonSpent": accounting.format_epsilon(spent)}
            self._write(kind, record, fields)

    def _read(self) -> LedgerState | None:
        """The state of the ledger; None where the run has none yet, or fails because of it."""
        try:
            return self._ledger.read()
        except LedgerError:
            return None

    def _write(self, kind: str, record: LogRecord, fields: dict[str, object]) -> None:
        LOGGER.info(json.dumps({"event": kind, "job": self._job, "time": record.time, **fields}))
