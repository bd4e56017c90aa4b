"""Durations of operations on a cluster, printed at the end of a run and kept in a file.

A goal is compared with the duration without steal time (see `polling`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.polling import Timer

_STEAL_SHOWN_BELOW = 0.95
"""The duration without steal time is shown only if it is below this share of the whole."""


class Stopwatch:
    """Measures a block: `with stopwatch("worker killed → next step", goal=90): ...`.

    Args:
        file: keeps the measurements of all runs, one JSON object a line.
        here: whether the measured work runs on this machine.
    """

    def __init__(self, file: Path, *, here: bool = True) -> None:
        self._file, self._here = file, here
        self.lines: list[str] = []
        self.last = 0.0
        """Seconds of the last measurement, without steal time."""

    @contextlib.contextmanager
    def __call__(self, what: str, goal: float | None = None) -> Iterator[None]:
        """Measure a block, and record the measurement if the block raises no error.

        Args:
            goal: limit in seconds, without steal time.

        Raises:
            AssertionError: the block took longer.
        """
        timer = Timer(here=self._here)
        yield
        seconds, self.last = timer.elapsed, timer.elapsed_with_cpu
        text = f"{seconds:.1f} s"
        if self.last <= _STEAL_SHOWN_BELOW * seconds:
            text += f" (without steal time {self.last:.1f})"
        self.lines.append(f"{text:>9}  {what}" + (f" (goal: {goal:.0f} s)" if goal else ""))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        measure = {"at": round(time.time()), "what": what, "seconds": round(seconds, 1), "given": round(self.last, 1)}
        with self._file.open("a") as kept:
            kept.write(json.dumps(measure) + "\n")
        assert goal is None or self.last <= goal, f"{what}: {text}, more than {goal:.0f}"
