"""How long things took on a cluster, told at the end of a run and kept beside the cluster's logs.

A virtual machine may be given less of its CPUs than it asks for, and then everything takes as much longer. The kernel
counts what was withheld (`steal` in proc(5)); a limit is compared with the time that the CPUs were really there.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_WORTH_TELLING = 0.95


@dataclass(frozen=True)
class Cpu:
    """What this machine's CPUs have done since it started, in ticks: worked, and been withheld while there was work."""

    worked: int
    withheld: int

    @classmethod
    def now(cls, stat: Path = _STAT) -> Cpu:
        """Of this moment; nothing where the kernel does not tell."""
        if not stat.exists():
            return cls(0, 0)
        user, nice, system, _, _, interrupts, soft, steal = map(int, stat.read_text().split("\n")[0].split()[1:9])
        return cls(user + nice + system + interrupts + soft, steal)

    def share_since(self, before: Cpu) -> float:
        """Which part of the work that there was since then the CPUs were given for: 1 where nothing was withheld."""
        worked, withheld = self.worked - before.worked, self.withheld - before.withheld
        return worked / (worked + withheld) if withheld else 1.0


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
        began, before = time.monotonic(), Cpu.now()
        yield
        seconds = time.monotonic() - began
        share = Cpu.now().share_since(before) if self._here else 1.0
        self.last = seconds * share
        told = (
            f"{seconds:.1f} s" if share > _WORTH_TELLING else f"{seconds:.1f} s (CPUs were there for {self.last:.1f})"
        )
        self.lines.append(f"{told:>9}  {what}" + (f" (goal: {goal:.0f} s)" if goal else ""))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        measure = {"at": round(time.time()), "what": what, "seconds": round(seconds, 1), "share": round(share, 2)}
        with self._file.open("a") as kept:
            kept.write(json.dumps(measure) + "\n")
        assert goal is None or self.last <= goal, f"{what}: {told}, more than {goal:.0f}"
