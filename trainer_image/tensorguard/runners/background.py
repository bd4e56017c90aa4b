"""Work that must not run on the main thread, and what the main thread does meanwhile.

On the main thread Ray's own Ctrl-C handler would kill the workers before they could seal a checkpoint. So Ray is
started and waited for on a thread of its own, while the main one stays free for signals.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

_POLL_SECONDS = 0.2


def run_in_background(work: Callable[[], None], meanwhile: Callable[[], None]) -> None:
    """Call `work` on another thread; call `meanwhile` on this one, again and again until `work` ends, and once more.

    `work` handles its own exceptions.
    """
    thread = threading.Thread(target=work, name="tensafe-run", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
        _keep_sigterm()
        meanwhile()
    meanwhile()


def _keep_sigterm() -> None:
    """Put Python's own SIGTERM handler back, where there is one; does nothing off the main thread.

    When Ray starts it sets a handler in C++, which dumps a stack, calls Python's, and aborts the process three seconds
    later: too soon to seal a checkpoint.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
