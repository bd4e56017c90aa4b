"""Requests that a run stops, so that all its workers stop at the same step.

Ctrl-C, SIGTERM or a callback sets the stop flag, which is a file in the run's folder. Each worker checks it between
micro-batches. A worker that sees it leaves its step unfinished and reports this in the header that all workers exchange
before a reveal. Then no worker reveals that step, and rank 0 writes a checkpoint of the last revealed one.
"""

from __future__ import annotations

from pathlib import Path

STOP_FILE = "stop"


class StopSignal:
    """The stop flag of a run; true once a stop was requested.

    Processes share it through the run's folder. Reading it costs at most one look-up of a file name.
    """

    def __init__(self) -> None:
        self._requested = False
        self._path: Path | None = None

    @classmethod
    def of(cls, run_directory: Path) -> StopSignal:
        """The stop flag of the run in `run_directory`."""
        stop = cls()
        stop._path = run_directory / STOP_FILE
        return stop

    def bind(self, run_directory: Path) -> None:
        """Make this the stop flag of the run in `run_directory`, and clear an old flag there."""
        self._path = run_directory / STOP_FILE
        self._path.unlink(missing_ok=True)
        if self._requested:
            self._path.touch()

    def request(self) -> None:
        """Set the flag. This is safe in a signal handler, and before the run has a folder."""
        self._requested = True
        if self._path is not None:
            self._path.touch()

    def __bool__(self) -> bool:
        if not self._requested and self._path is not None and self._path.exists():
            self._requested = True
        return self._requested
