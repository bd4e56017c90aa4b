"""Writes the log of a worker pod: one JSON object per line.

Ray keeps the output of its workers in files of its session, which are lost with the pod. So log records, warnings and
the error that ended an incarnation go to the output of the pod's first process, where `kubectl logs` and log collectors
find them. So do the lines of the audit log, in a job that keeps one. Log records carry no private figure, and an error
is reduced to what `describe_error` returns. `Stepped` records are left out, because they would be a line every few
seconds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from contextlib import suppress
from pathlib import Path

from tensorguard.audit_log.places import LOGGER as AUDIT_LOGGER
from tensorguard.training.collective_errors import describe_error
from tensorguard.training.run_log import LogRecord, Stepped


class PodLog(logging.Handler):
    """Writes lines to `output`.

    If the output cannot be opened, or its reader is too slow, lines are dropped: training neither fails nor waits.

    Args:
        rank: rank of this worker.
        output: a path such as /proc/1/fd/1.
    """

    def __init__(self, rank: int, output: Path) -> None:
        super().__init__(logging.INFO)
        self._rank = rank
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)

    def write_record(self, record: LogRecord) -> None:
        """Write a record of the run log."""
        if not isinstance(record, Stepped):
            self._write(record.kind, **record.values())

    def emit(self, record: logging.LogRecord) -> None:
        """Write a warning of this project, or a line of its audit log as it is: then its hash holds for a reader."""
        if record.name == AUDIT_LOGGER.name:
            self._write_line(record.getMessage())
        elif record.levelno >= logging.WARNING:
            self._write(record.levelname.lower(), time=record.created, message=record.getMessage())

    def write_failure(self, error: Exception) -> None:
        """Write what ended this incarnation. Ray Train may restart the workers after it."""
        reason, message = describe_error(error)
        self._write("lost", time=time.time(), reason=reason.value, message=message)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        super().close()

    def _write(self, kind: str, **fields: object) -> None:
        """Write a line. A loss that is NaN or infinite is left out, because JSON cannot represent it."""
        finite = {name: value for name, value in fields.items() if not isinstance(value, float) or math.isfinite(value)}
        self._write_line(json.dumps({"kind": kind, "rank": self._rank, **finite}))

    def _write_line(self, line: str) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.write(self._file, f"{line}\n".encode())
