"""Requests that a run stops, so that all its workers stop at the same step.

There are two kinds of request, and each is a file in the run's folder.

- Now (Ctrl-C, SIGTERM). Each worker checks the flag between micro-batches. A worker that sees it leaves its step
  unfinished and reports this in the header that all workers exchange before a reveal. Then no worker reveals that step.
  Steps that were charged in advance are lost.
- After the charged steps (`trainer.stop()`, a callback that raises). Rank 0 checks the flag before it charges further
  steps. So the request costs no ε, and takes about ten seconds or one step longer.

In both cases rank 0 writes a checkpoint of the last revealed step.
"""

from __future__ import annotations

from pathlib import Path

STOP_FILE = "stop"
STOP_AFTER_CHARGED_FILE = "stop-after-charged-steps"


class StopSignal:
    """The stop flags of a run. It is true once a stop was requested that leaves the present step unfinished.

    Processes share it through the run's folder. Reading it costs at most one look-up of a file name.
    """

    def __init__(self) -> None:
        self._requested: set[str] = set()
        self._directory: Path | None = None

    @classmethod
    def of(cls, run_directory: Path) -> StopSignal:
        """The stop flags of the run in `run_directory`."""
        stop = cls()
        stop._directory = run_directory
        return stop

    def bind(self, run_directory: Path) -> None:
        """Make these the stop flags of the run in `run_directory`, and clear old flags there."""
        self._directory = run_directory
        for name in (STOP_FILE, STOP_AFTER_CHARGED_FILE):
            (run_directory / name).unlink(missing_ok=True)
        for name in self._requested:
            (run_directory / name).touch()

    def request(self, *, after_charged_steps: bool = False) -> None:
        """Set a flag. This is safe in a signal handler, and before the run has a folder."""
        name = STOP_AFTER_CHARGED_FILE if after_charged_steps else STOP_FILE
        self._requested.add(name)
        if self._directory is not None:
            (self._directory / name).touch()

    def __bool__(self) -> bool:
        return self._is_set(STOP_FILE)

    @property
    def requested(self) -> bool:
        """Whether a stop of either kind was requested: then no further step is charged."""
        return bool(self) or self._is_set(STOP_AFTER_CHARGED_FILE)

    def _is_set(self, name: str) -> bool:
        if name not in self._requested and self._directory is not None and (self._directory / name).exists():
            self._requested.add(name)
        return name in self._requested
