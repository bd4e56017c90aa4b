"""Ctrl-C and SIGTERM during `fit`: a checkpoint is saved first, then the signal has its usual effect.

The first signal requests a stop. After the checkpoint, `pass_on` sends the same signal to the handlers that were
installed before `fit`: Ctrl-C raises KeyboardInterrupt, and SIGTERM ends the program. A second signal has its usual
effect immediately. Python runs handlers on the main thread: on any other thread, and for a signal that the program
ignores, nothing is changed.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from tensorguard.training.stop_signal import StopSignal

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal:
    """A context in which a signal requests `stop`."""

    def __init__(self, stop: StopSignal) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}
        self._received: int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def pass_on(self, note: str) -> None:
        """Send the received signal, if any, to the handlers from before `fit`.

        `note` is added to what they raise. It is printed where there is no handler, and the signal ends the program.
        """
        if self._received is None:
            return
        if signal.getsignal(self._received) is signal.SIG_DFL:
            print(note, file=sys.stderr, flush=True)
        try:
            signal.raise_signal(self._received)
        except BaseException as error:
            error.add_note(note)
            raise

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None:
            self._restore()
            signal.raise_signal(number)
            return
        self._received = number
        self._stop.request()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
