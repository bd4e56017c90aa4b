"""The audit log: what a run spends and publishes, while it runs, as records of Python's logging.

In come the run's log records. Out goes one JSON object for each charge, checkpoint, evaluation, start and end, to the
standard logger `tensafe.audit` at level INFO. The program's logging configuration decides where they are written. The
authoritative record is the ledger in the run's folder, which cannot be turned off.
"""

from __future__ import annotations

import json
import logging

from tensafe_api import accounting
from tensafe_api.resolve import Plan
from tensorguard.training.run_log import Ended, Evaluated, LogRecord, Saved, Started, Stepped

LOGGER = logging.getLogger("tensafe.audit")


class AuditLog:
    """Writes one run's log records to the logger."""

    def __init__(self, job_name: str, plan: Plan) -> None:
        self._job = job_name
        self._plan = plan
        self._charged = 0

    def log(self, record: LogRecord) -> None:
        """Write `record` to the audit log, if it is of a kind that an audit needs."""
        if isinstance(record, Stepped):
            if record.charged > self._charged:
                self._charged = record.charged
                spent = accounting.format_epsilon(self._plan.epsilon(record.charged))
                self._write("charged", record, {"stepsCharged": record.charged, "epsilonSpent": spent})
        elif isinstance(record, Started | Saved | Evaluated | Ended):
            self._write(record.kind, record, {name: value for name, value in record.values().items() if name != "time"})

    def _write(self, kind: str, record: LogRecord, fields: dict[str, object]) -> None:
        LOGGER.info(json.dumps({"event": kind, "job": self._job, "time": record.time, **fields}))
