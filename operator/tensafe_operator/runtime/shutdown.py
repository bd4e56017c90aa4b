"""How the process ends: all its tasks with the first that ends, and soon.

Who leads and does nothing keeps everybody else from leading, so the end must come: a cancellation may be swallowed (by
kopf, and by Python 3.11's `asyncio.wait_for`, where it comes with what was waited for), a plan may take a minute in its
thread, a client may not read its answer. Tasks are cancelled until they end; what takes too long is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)
END_SECONDS = 10.0
"""The end takes no longer. A pod has 15 seconds for it."""
AGAIN_SECONDS = 1.0
T = TypeVar("T")


class Shutdown:
    """Whether the process was asked to end, and the alarm that rings where it does not."""

    def __init__(self) -> None:
        self.asked = False
        self._alarm: threading.Timer | None = None

    def begin(self) -> None:
        """From now on there are END_SECONDS left."""
        self._alarm = threading.Timer(END_SECONDS, _cut_off)
        self._alarm.daemon = True
        self._alarm.start()

    def in_time(self) -> None:
        """All has ended, threads too."""
        if self._alarm is not None:
            self._alarm.cancel()


def _cut_off() -> None:
    log.error("this process has not ended within %.0f s: it is cut off", END_SECONDS)
    logging.shutdown()
    os._exit(1)


class TaskSupervisor:
    """Tasks that end together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, what: str, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something that goes on for as long as all else does; `what` is its name in the log."""
        task = asyncio.create_task(coroutine, name=what)
        self._tasks.add(task)
        return task

    async def done(self, what: str, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T] | None:
        """Do something that comes to an end of its own, while all else goes on; None where all else does not."""
        task = self.start(what, coroutine)
        await self.first()
        if not task.done() or task.cancelled() or task.exception() or len(self.ended()) > 1:
            return None
        self._tasks.discard(task)
        return task

    async def first(self) -> None:
        """Return when one of them has ended."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def ended(self) -> set[asyncio.Task[Any]]:
        """Those that have ended."""
        return {task for task in self._tasks if task.done()}

    async def end(self) -> None:
        """Return when all of them have ended; they are cancelled until they do."""
        left = {task for task in self._tasks if not task.done()}
        while left:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=AGAIN_SECONDS)
            if left:
                log.info("still at it: %s", ", ".join(sorted(task.get_name() for task in left)))
