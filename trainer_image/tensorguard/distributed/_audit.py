"""The audit log: what was spent and released, as it happens, for whoever collects logs.

In come the run's events; out goes one JSON object for each charge, checkpoint, evaluation, start and end, to the
standard logger `tensafe.audit` at level INFO. Where it goes is the program's logging configuration's business. The
record that counts is the ledger in the run's folder, which is always kept and cannot be turned off.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict

from tensafe_api import accounting
from tensafe_api.resolve import Plan
from tensorguard.training.run_log import Ended, Evaluated, LogRecord, Saved, Started, Stepped

LOGGER = logging.getLogger("tensafe.audit")


class AuditLog:
    """Tells one run's events to the logger."""

    def __init__(self, job_name: str, plan: Plan) -> None:
        self._job = job_name
        self._plan = plan
        self._charged = 0

    def hear(self, event: LogRecord) -> None:
        """Log `event`, if it is one of those that matter to an audit."""
        if isinstance(event, Stepped):
            if event.charged > self._charged:
                self._charged = event.charged
                spent = accounting.format_epsilon(self._plan.epsilon(event.charged))
                self._log("charged", event, {"stepsCharged": event.charged, "epsilonSpent": spent})
        elif isinstance(event, Started | Saved | Evaluated | Ended):
            self._log(event.kind, event, {name: value for name, value in asdict(event).items() if name != "time"})

    def _log(self, kind: str, event: LogRecord, facts: dict[str, object]) -> None:
        LOGGER.info(json.dumps({"event": kind, "job": self._job, "time": event.time, **facts}))
