"""How long tests wait for what nobody tells them of: in seconds for which the machine had its CPUs.

A virtual machine may be given less of its CPUs than it asks for, and for half a minute nearly nothing: then everything
takes as much longer. The kernel counts what was withheld (`steal` in proc(5)), and only the rest counts here. Where a
limit is what a test claims, it is the claim's; all other limits are long, since only a test that fails waits so long.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PATIENCE_SECONDS = 300.0
_STAT = Path("/proc/stat")


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


class Timer:
    """Counts from its making.

    Args:
        here: whether what is timed runs on this machine, so that its CPUs matter.
    """

    def __init__(self, *, here: bool = True) -> None:
        self._began, self._before, self._here = time.monotonic(), Cpu.now(), here

    @property
    def seconds(self) -> float:
        """By the clock."""
        return time.monotonic() - self._began

    @property
    def share(self) -> float:
        """For which part of the work that there was the CPUs were there."""
        return Cpu.now().share_since(self._before) if self._here else 1.0

    @property
    def given(self) -> float:
        """Seconds for which the CPUs were there."""
        return self.seconds * self.share


def until(happened: Callable[[], T], seconds: float = PATIENCE_SECONDS, why: Callable[[], str] = str) -> T:
    """Wait until something has happened, which nobody tells of; what it was.

    Args:
        seconds: with the CPUs there.
        why: what is said where it does not happen.
    """
    timer = Timer()
    while not (what := happened()):
        assert timer.given < seconds, why()
        time.sleep(0.1)
    return what


def until_open(address: str) -> None:
    """Wait until somebody listens on an address, such as 127.0.0.1:80."""
    host, port = address.split(":")

    def listens() -> bool:
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            return False
        return True

    until(listens, why=lambda: f"nobody listens on {address}")
