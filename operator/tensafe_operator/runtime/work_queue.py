"""The queue between watching and reconciling.

A key waits at most once and is handled once at a time. A key that is touched while it is being handled is handled again
afterwards. A handler may ask to be called again at a given time. A handler that fails is called again, with a growing
delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from tensafe_operator.runtime.api_errors import ApiError, ApiUnavailable
from tensafe_operator.runtime.objects import Key

log = logging.getLogger(__name__)
WORKERS = 16
"""How many keys are handled concurrently. A handler mostly waits for the API server."""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0
Handler = Callable[[Key], Awaitable[float | None]]
"""Handles a key; returns when to handle it again at the latest (seconds since the epoch), or None."""


def _default_log_fields(key: Key) -> Mapping[str, str]:
    return {"namespace": key[0], "object": key[1]}


class WorkQueue:
    """Keys to handle, first in, first out. Everything runs on one event loop, so nothing here is locked.

    Args:
        log_fields: returns the fields of log lines about a key. `name` is not possible: logging reserves it.
    """

    def __init__(self, log_fields: Callable[[Key], Mapping[str, str]] = _default_log_fields) -> None:
        self._log_fields = log_fields
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._running: set[Key] = set()
        self._touched_while_running: set[Key] = set()
        self._alarms: list[tuple[float, int, Key]] = []
        self._due: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._numbers = itertools.count()
        self._alarms_changed = asyncio.Event()

    @property
    def depth(self) -> int:
        """How many keys wait to be handled, without those that wait for a later time."""
        return len(self._waiting)

    def touch(self, key: Key) -> None:
        """Handle this key soon: something about it has changed."""
        if key in self._running:
            self._touched_while_running.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def forget(self, key: Key) -> None:
        """Keep nothing about this key, which does not exist any more."""
        self._due.pop(key, None)

    def touch_at(self, key: Key, when: float) -> None:
        """Touch the key at this time, unless an earlier time is already set."""
        if self._due.get(key, float("inf")) <= when:
            return
        self._due[key] = when
        heapq.heappush(self._alarms, (when, next(self._numbers), key))
        self._alarms_changed.set()

    async def run(self, handle: Handler) -> None:
        """Handle keys until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ring_alarms())
            for _ in range(WORKERS):
                group.create_task(self._work(handle))

    async def _work(self, handle: Handler) -> None:
        while True:
            await asyncio.sleep(0)  # a handler may await nothing, and all other workers may be busy
            key = await self._ready.get()
            self._waiting.discard(key)
            self._running.add(key)
            try:
                wake = await handle(key)
                self._failures.pop(key, None)
                if wake is not None:
                    self.touch_at(key, wake)
            except (ApiUnavailable, ApiError) as error:
                self._retry(key, str(error))
            except Exception as error:
                log.exception("the reconcile failed", extra=dict(self._log_fields(key)))
                self._retry(key, type(error).__name__)
            finally:
                self._running.discard(key)
                if key in self._touched_while_running:
                    self._touched_while_running.discard(key)
                    self.touch(key)

    def _retry(self, key: Key, reason: str) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(failures - 1, 10))
        log.warning("%s; retrying in %.0f s", reason, wait, extra=dict(self._log_fields(key)))
        self.touch_at(key, time.time() + wait)

    async def _ring_alarms(self) -> None:
        while True:
            self._alarms_changed.clear()
            wait = self._alarms[0][0] - time.time() if self._alarms else None
            if wait is None or wait > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._alarms_changed.wait()
                continue
            when, _, key = heapq.heappop(self._alarms)
            if self._due.get(key) == when:
                del self._due[key]
                self.touch(key)
