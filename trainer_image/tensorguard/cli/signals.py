"""Ctrl-C, SIGTERM and a closed terminal: the first one saves a checkpoint and stops the job, a second one aborts it.

The handlers run on the main thread. The local runner runs Ray in another thread, because Ray's own handler would kill
the workers without a checkpoint. A handler may interrupt the main thread while it writes to standard error, so another
thread prints the message, and waits for the stream's lock.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

MESSAGE = (
    "stopping: the workers save a checkpoint as soon as they have checked the stop flag "
    "(press Ctrl-C again to abort without it)"
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stoppable(Protocol):
    """`tensorguard.training.stop_signal.StopSignal`: a request that the workers check before each step."""

    def request(self) -> None: ...

    def __bool__(self) -> bool: ...


class StopOnSignal:
    """Turns signals into a request to stop while a job runs, and into KeyboardInterrupt otherwise."""

    def __init__(self) -> None:
        self._stop: Stoppable | None = None
        self._print: Callable[[str], None] | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals within this block. Only for the main thread."""
        handled = [number for number in _SIGNALS if not (number == signal.SIGHUP and _is_ignored(number))]
        before: dict[int, Any] = {number: signal.signal(number, self._handle) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def requesting(self, stop: Stoppable, print_line: Callable[[str], None]) -> Iterator[None]:
        """Within this block the first signal requests `stop` and prints a message."""
        self._print, self._stop = print_line, stop
        try:
            yield
        finally:
            self._stop = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stop is None or self._stop:
            raise KeyboardInterrupt
        self._stop.request()
        if self._print is not None:
            threading.Thread(target=self._print, args=(MESSAGE,), daemon=True).start()


def _is_ignored(number: int) -> bool:
    """Whether the signal is ignored, as SIGHUP is under nohup."""
    return signal.getsignal(number) is signal.SIG_IGN
