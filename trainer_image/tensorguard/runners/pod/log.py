"""What a worker pod says to whoever reads its log: a JSON object a line.

Ray keeps the output of its workers in files of its session, which go with the pod. Events, warnings and what ended an
incarnation go to the output of the pod's first process instead, where `kubectl logs` and collectors find them. Events
carry no private figure, and of an error only what `describe_error` returns; steps are left out, which would be a line
every few seconds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from contextlib import suppress
from pathlib import Path

from tensorguard.training.collective_errors import describe_error
from tensorguard.training.run_log import LogRecord, Stepped


class PodLog(logging.Handler):
    """Writes lines to `output`. Where it is not to be had, or nobody reads it, nothing is said: training neither fails
    nor waits for that.

    Args:
        rank: of this worker.
        output: such as /proc/1/fd/1.
    """

    def __init__(self, rank: int, output: Path) -> None:
        super().__init__(logging.WARNING)
        self._rank = rank
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)

    def write_record(self, event: LogRecord) -> None:
        """Say what happened."""
        if not isinstance(event, Stepped):
            self._say(event.kind, **event.values())

    def emit(self, record: logging.LogRecord) -> None:
        """Say a warning of ours."""
        self._say(record.levelname.lower(), time=record.created, message=record.getMessage())

    def write_failure(self, error: Exception) -> None:
        """Say what ended this incarnation, which Ray Train may start again."""
        reason, message = describe_error(error)
        self._say("lost", time=time.time(), reason=reason.value, message=message)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        super().close()

    def _say(self, kind: str, **words: object) -> None:
        """Write a line; a loss that is no number is left out, since JSON has no word for it."""
        known = {name: word for name, word in words.items() if not isinstance(word, float) or math.isfinite(word)}
        line = json.dumps({"kind": kind, "rank": self._rank, **known}) + "\n"
        if self._file is not None:
            with suppress(OSError):
                os.write(self._file, line.encode())
