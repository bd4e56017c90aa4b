"""Ends the process: the first task that ends ends all others, and the process ends within END_SECONDS.

A leader that does nothing but keeps its Lease prevents every other process from leading, so the process must end. Three
things can delay that. A task may swallow its cancellation: kopf does, and so does `asyncio.wait_for` of Python 3.11 if
the cancellation arrives together with the awaited result. A thread may compute for a minute. A client may not read its
answer. Tasks are therefore cancelled again until they end, and after END_SECONDS the process is killed.
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
"""Longest duration of a shutdown. It must be shorter than the grace period of the pod, which is 15 seconds."""
AGAIN_SECONDS = 1.0
T = TypeVar("T")


class Shutdown:
    """Whether a signal has asked the process to end, and the timer that kills the process if it does not."""

    def __init__(self) -> None:
        self.requested = False
        self._timer: threading.Timer | None = None

    def start_deadline(self) -> None:
        """Kill the process if `cancel_deadline` is not called within END_SECONDS."""
        self._timer = threading.Timer(END_SECONDS, _kill)
        self._timer.daemon = True
        self._timer.start()

    def cancel_deadline(self) -> None:
        """Everything has ended, threads included."""
        if self._timer is not None:
            self._timer.cancel()


def _kill() -> None:
    log.error("this process has not ended within %.0f s: it is killed", END_SECONDS)
    logging.shutdown()
    os._exit(1)


class TaskSupervisor:
    """Tasks of which the first that ends ends all others."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, name: str, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that runs as long as the process. Its name appears in the log."""
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        return task

    async def complete(self, name: str, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T] | None:
        """Run a task that is expected to end; the finished task, or None if it failed or another task ended first."""
        task = self.start(name, coroutine)
        await self.wait_for_first()
        if not task.done() or task.cancelled() or task.exception() or len(self.ended()) > 1:
            return None
        self._tasks.discard(task)
        return task

    async def wait_for_first(self) -> None:
        """Return when one of the tasks has ended."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def ended(self) -> set[asyncio.Task[Any]]:
        """The tasks that have ended."""
        return {task for task in self._tasks if task.done()}

    async def cancel_all(self) -> None:
        """Return when all tasks have ended. Each is cancelled again until it ends."""
        running = {task for task in self._tasks if not task.done()}
        while running:
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=AGAIN_SECONDS)
            if running:
                log.info("waiting for tasks to end: %s", ", ".join(sorted(task.get_name() for task in running)))
