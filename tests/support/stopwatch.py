"""How long things took on a cluster, told at the end of a run and kept beside the cluster's logs."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path


class Stopwatch:
    """Measures what is done within it: `with stopwatch("worker killed → next step", goal=90): ...`.

    Args:
        file: where measures of this and earlier runs are kept, a JSON object a line.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.lines: list[str] = []
        self.last = 0.0
        """The last measure, in seconds."""

    @contextlib.contextmanager
    def __call__(self, what: str, goal: float | None = None, limit: float | None = None) -> Iterator[None]:
        """Measure, and keep the measure if all went well.

        Args:
            goal: what is told beside the measure, in seconds.
            limit: what must not be exceeded: more than the goal, since a machine may be busy.
        """
        began = time.monotonic()
        yield
        seconds = self.last = round(time.monotonic() - began, 1)
        self.lines.append(f"{seconds:7.1f} s  {what}" + (f" (goal: {goal:.0f} s)" if goal else ""))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as kept:
            kept.write(json.dumps({"at": round(time.time()), "what": what, "seconds": seconds}) + "\n")
        assert limit is None or seconds <= limit, f"{what}: {seconds} s, more than {limit:.0f}"
