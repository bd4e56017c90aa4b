"""A clock for tests in place of the module `time`: only sleeping, and the test itself, let time pass."""

from __future__ import annotations


class Clock:
    """Replaces `time` in a module.

    Attributes:
        now: what `monotonic` returns, in seconds.
        waits: the seconds of each sleep.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
