"""Runs work on a background thread, while the main thread handles signals.

If Ray started on the main thread, its own Ctrl-C handler would kill the workers before they could write a checkpoint.
So a background thread starts Ray and waits for it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

_POLL_SECONDS = 0.2


def run_in_background(work: Callable[[], None], meanwhile: Callable[[], None]) -> None:
    """Call `work` on another thread. Call `meanwhile` on this one repeatedly until `work` has ended, then once more.

    `work` must not raise.
    """
    thread = threading.Thread(target=work, name="tensafe-run", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
        _keep_sigterm()
        meanwhile()
    meanwhile()


def _keep_sigterm() -> None:
    """Install Python's own SIGTERM handler again, if there is one. Does nothing on any other than the main thread.

    When Ray starts it installs a handler in C++. That handler dumps a stack, calls Python's handler, and aborts the
    process three seconds later, which is too soon to write a checkpoint.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
