"""How a run is asked to stop, and how all its workers stop at the same step.

Whoever wants to stop (Ctrl-C, SIGTERM, a callback) raises the flag: a file in the run's folder. Each worker sees it
between micro-batches, leaves its step unfinished and says so in the header that all workers agree on before a reveal;
then none reveals that step, and rank 0 seals a checkpoint of the last one that was revealed.
"""

from __future__ import annotations

from pathlib import Path

STOP_FILE = "stop"


class StopSignal:
    """The stop flag of a run. Shared between processes through the run's folder; cheap to ask."""

    def __init__(self) -> None:
        self._requested = False
        self._path: Path | None = None

    @classmethod
    def of(cls, run_directory: Path) -> StopSignal:
        """The flag of the run in `run_directory`."""
        stop = cls()
        stop._path = run_directory / STOP_FILE
        return stop

    def bind(self, run_directory: Path) -> None:
        """Make this flag the one of the run in `run_directory`; an old flag there is lowered."""
        self._path = run_directory / STOP_FILE
        self._path.unlink(missing_ok=True)
        if self._requested:
            self._path.touch()

    def request(self) -> None:
        """Raise the flag. Safe in a signal handler, and before the run has a folder."""
        self._requested = True
        if self._path is not None:
            self._path.touch()

    def __bool__(self) -> bool:
        if not self._requested and self._path is not None and self._path.exists():
            self._requested = True
        return self._requested
