"""Passes the lines of a run's audit log to Python's logging, while the run writes them.

In: `audit.jsonl` in the run's folder, which the workers write (`tensorguard.audit_log`). Out: each line as a message of
the standard logger `tensafe.audit` at level INFO. The program's logging configuration decides where it is written. A
copy outside of this machine shows if the file is replaced later. The lines are passed as they are, so the copy is
verified in the same way.
"""

from __future__ import annotations

from pathlib import Path

from tensorguard.audit_log.places import AUDIT_LOG, LOGGER
from tensorguard.training.run_log import AppendedLines


class AuditLogCopy:
    """The copy of one call of `fit`. Lines of earlier calls are not passed again."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / AUDIT_LOG
        self._lines = AppendedLines(self._path)

    def start(self) -> None:
        """Leave out what the file holds now: the run is about to start."""
        self._lines = AppendedLines(self._path, from_end=True)

    def log_new(self) -> None:
        """Log the lines that were added since the last call. Raises what a logging handler raises."""
        for line in self._lines.read():
            LOGGER.info("%s", line.decode().rstrip("\n"))
