"""How long tests wait for what nobody tells them of: in seconds for which the machine had its CPUs.

A virtual machine may be given less of its CPUs than it asks for, and for half a minute nearly nothing: then everything
takes as much longer. The kernel counts what was withheld (`steal` in proc(5)), and only the rest counts here. Where a
limit is what a test claims, it is the claim's; all other limits are long, since only a test that fails waits so long.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PATIENCE_SECONDS = 300.0
_STAT = Path("/proc/stat")
_STEAL = 8


def withheld(stat: Path = _STAT) -> list[float]:
    """For how many seconds each CPU was withheld while there was work for it, since the machine started; nothing where
    the kernel does not tell.
    """
    if not stat.exists():
        return []
    lines = (line.split() for line in stat.read_text().splitlines() if line.startswith("cpu") and line[3].isdigit())
    return [int(fields[_STEAL]) / os.sysconf("SC_CLK_TCK") for fields in lines]


class Timer:
    """Counts from its making.

    Args:
        here: whether what is timed runs on this machine, so that its CPUs matter.
    """

    def __init__(self, *, here: bool = True) -> None:
        self._began, self._before, self._here = time.monotonic(), withheld(), here

    @property
    def seconds(self) -> float:
        """By the clock."""
        return time.monotonic() - self._began

    @property
    def given(self) -> float:
        """Those of them for which the CPUs were there: all but what was withheld of the one that was withheld most."""
        lost = [after - before for before, after in zip(self._before, withheld(), strict=True)] if self._here else []
        return self.seconds - max(lost, default=0.0)


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
