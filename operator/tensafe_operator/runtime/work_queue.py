"""The queue between watching and reconciling: each key waits once, runs once at a time, and may set an alarm.

A key that is touched while it runs runs again afterwards. What fails is tried again, later each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import time
from collections.abc import Awaitable, Callable

from tensafe_operator.runtime.api_client import ApiError, ApiUnavailable
from tensafe_operator.runtime.cache import Key

log = logging.getLogger(__name__)
WORKERS = 16
"""How many keys are handled side by side. A grave look waits for tens of milliseconds while much is written (a list is
answered from a cache that must have caught up), so many of them wait at once; one core's work is the limit then.
"""
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0
Handler = Callable[[Key], Awaitable[float | None]]
"""Handles a key, and says when to come back (seconds since the epoch), or None."""


class WorkQueue:
    """Keys to handle. Everything runs on one event loop, so nothing here is locked."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._alarms: list[tuple[float, int, Key]] = []
        self._due: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._numbers = itertools.count()
        self._changed = asyncio.Event()

    def touch(self, key: Key) -> None:
        """Something about this key has changed."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def at(self, key: Key, when: float) -> None:
        """Touch the key at this time, unless it is to be touched before."""
        if self._due.get(key, float("inf")) <= when:
            return
        self._due[key] = when
        heapq.heappush(self._alarms, (when, next(self._numbers), key))
        self._changed.set()

    async def run(self, handle: Handler) -> None:
        """Handle keys until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ring())
            for _ in range(WORKERS):
                group.create_task(self._serve(handle))

    async def _serve(self, handle: Handler) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._running.add(key)
            try:
                wake = await handle(key)
                self._failures.pop(key, None)
                if wake is not None:
                    self.at(key, wake)
            except (ApiUnavailable, ApiError) as error:
                self._later(key, str(error))
            except Exception as error:
                log.exception("the pass failed", extra=_of(key))
                self._later(key, type(error).__name__)
            finally:
                self._running.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.touch(key)

    def _later(self, key: Key, reason: str) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait = min(LONGEST_RETRY, FIRST_RETRY * 2 ** min(failures - 1, 10))
        log.warning("%s; again in %.0f s", reason, wait, extra=_of(key))
        self.at(key, time.time() + wait)

    async def _ring(self) -> None:
        while True:
            self._changed.clear()
            wait = self._alarms[0][0] - time.time() if self._alarms else None
            if wait is None or wait > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._changed.wait()
                continue
            when, _, key = heapq.heappop(self._alarms)
            if self._due.get(key) == when:
                del self._due[key]
                self.touch(key)


def _of(key: Key) -> dict[str, str]:
    return {"namespace": key[0], "job": key[1]}
