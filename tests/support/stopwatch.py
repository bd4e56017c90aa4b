"""How long things took on a cluster, told at the end of a run and kept beside the cluster's logs.

A limit is compared with the time that the CPUs were really there (see `patience`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from patience import Timer

_WORTH_TELLING = 0.95


class Stopwatch:
    """Measures what is done within it: `with stopwatch("worker killed → next step", goal=90): ...`.

    Args:
        file: where measures of this and earlier runs are kept, a JSON object a line.
        here: whether what is measured runs on this machine.
    """

    def __init__(self, file: Path, *, here: bool = True) -> None:
        self._file, self._here = file, here
        self.lines: list[str] = []
        self.last = 0.0
        """The last measure: seconds that the CPUs were there."""

    @contextlib.contextmanager
    def __call__(self, what: str, goal: float | None = None) -> Iterator[None]:
        """Measure, and keep the measure if all went well.

        Args:
            goal: seconds, with the CPUs there, that must not be exceeded.

        Raises:
            AssertionError: where they are.
        """
        timer = Timer(here=self._here)
        yield
        seconds, self.last = timer.seconds, timer.given
        all_of_it = self.last > _WORTH_TELLING * seconds
        told = f"{seconds:.1f} s" + ("" if all_of_it else f" (CPUs were there for {self.last:.1f})")
        self.lines.append(f"{told:>9}  {what}" + (f" (goal: {goal:.0f} s)" if goal else ""))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        measure = {"at": round(time.time()), "what": what, "seconds": round(seconds, 1), "given": round(self.last, 1)}
        with self._file.open("a") as kept:
            kept.write(json.dumps(measure) + "\n")
        assert goal is None or self.last <= goal, f"{what}: {told}, more than {goal:.0f}"
