"""Ctrl-C and SIGTERM: the first one stops the job in good order, a second one at once.

The handlers belong to the main thread, where Python runs them; the engine runs Ray in a thread of its own, because
Ray's handler would kill the workers without a checkpoint. A handler may interrupt the main thread in the middle of a
write to standard error, so it leaves talking to another thread, which waits for its turn.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

SENTENCE = (
    "stopping: as soon as the workers look up, what they have learned is sealed in a checkpoint "
    "(Ctrl-C again to abort at once)"
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stoppable(Protocol):
    """`tensorguard.training.stop_signal.StopSignal`: a request that the engine looks at before each step."""

    def request(self) -> None: ...

    def __bool__(self) -> bool: ...


class Interrupts:
    """Turns signals into a request to stop while a job runs, and into KeyboardInterrupt otherwise."""

    def __init__(self) -> None:
        self._stop: Stoppable | None = None
        self._say: Callable[[str], None] | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle the signals within this block; only on the main thread."""
        before: dict[int, Any] = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def stopping(self, stop: Stoppable, say: Callable[[str], None]) -> Iterator[None]:
        """Within this block the first signal asks `stop` and says so."""
        self._say, self._stop = say, stop
        try:
            yield
        finally:
            self._stop = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stop is None or self._stop:
            raise KeyboardInterrupt
        self._stop.request()
        if self._say is not None:
            threading.Thread(target=self._say, args=(SENTENCE,), daemon=True).start()
