"""The queue between watching and reconciling.

A key waits at most once and is handled once at a time. A key that is touched while it is being handled is handled again
afterwards. A handler may ask to be called again at a given time. A handler that fails is called again, with a growing
delay. `FairOrder` decides which key is the next.

A handler that would have to compute for long raises `TakesLong` instead. `compute` then does that for the key, while
other keys are handled, and the key is handled again. Until that has ended, its namespace has no other computation, and
it counts as one: the handler may compute what is missing still. Where `compute` finds that another key's computation
has left nothing to compute, the turn ends at once: equal jobs wait for one computation, and not for one another.
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
from tensafe_operator.runtime.computation_order import ComputationOrder
from tensafe_operator.runtime.fair_order import FairOrder
from tensafe_operator.runtime.objects import Key

log = logging.getLogger(__name__)
WORKERS = 16
"""How many keys are handled concurrently. Reading the API server before an irreversible decision takes tens of
milliseconds while there are many writes: a list is answered from a watch cache that must have caught up. So many
handlers wait at the same time, and the limit is the work of one CPU core.
"""
COMPUTATIONS = 2
"""How many long computations run concurrently, each for another namespace: one with slow jobs keeps a core free for the
others. Each takes a core."""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0
Handler = Callable[[Key, bool], Awaitable[float | None]]
"""Handles a key; returns when to handle it again at the latest (seconds since the epoch), or None. The second argument
is true after its `TakesLong`: the results should be cached now, and it computes what is still missing. If that is too
much, it raises `TakesLong` again."""
Compute = Callable[[Key], Awaitable[bool]]
"""Computes what the handler of a key needs, so that it is cached, and returns whether it did: false where it is cached
already, or the key does not exist any more. It must not block the event loop. It raises `TakesLong` where more is left
for its next turn."""


class TakesLong(Exception):
    """Raised by a handler that would have to compute for long.

    Args:
        group: the group of the key, as for `ComputationOrder`.
    """

    def __init__(self, message: str = "", *, group: str = "") -> None:
        super().__init__(message)
        self.group = group


def _default_log_fields(key: Key) -> Mapping[str, str]:
    return {"namespace": key[0], "object": key[1]}


class WorkQueue:
    """Keys to handle. Everything runs on one event loop, so nothing here is locked.

    Args:
        log_fields: returns the fields of log lines about a key. `name` is not possible: logging reserves it.
    """

    def __init__(self, log_fields: Callable[[Key], Mapping[str, str]] = _default_log_fields) -> None:
        self._log_fields = log_fields
        self._ready, self._uncomputed = FairOrder(), ComputationOrder()
        self._computed: dict[Key, asyncio.Event] = {}
        """Keys that were computed, and what is set once they have been handled."""
        self._found_cached: set[Key] = set()
        """Keys for which nothing was left to compute, until they have been handled. If the handler needs more all the
        same, because it has read something newer, it computes that itself in its next turn."""
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
            self._ready.put(key)

    def forget(self, key: Key) -> None:
        """Keep nothing about this key, which does not exist any more."""
        self._ready.forget(key)
        self._due.pop(key, None)
        self._found_cached.discard(key)

    def touch_at(self, key: Key, when: float) -> None:
        """Touch the key at this time, unless an earlier time is already set."""
        if self._due.get(key, float("inf")) <= when:
            return
        self._due[key] = when
        heapq.heappush(self._alarms, (when, next(self._numbers), key))
        self._alarms_changed.set()

    async def run(self, handle: Handler, compute: Compute) -> None:
        """Handle keys until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ring_alarms())
            for _ in range(WORKERS):
                group.create_task(self._work(handle))
            for _ in range(COMPUTATIONS):
                group.create_task(self._compute(compute))

    async def _work(self, handle: Handler) -> None:
        while True:
            await asyncio.sleep(0)  # a handler may await nothing, and all other workers may be busy
            key = await self._ready.get()
            computed = self._computed.pop(key, None)
            self._waiting.discard(key)
            self._running.add(key)
            self._ready.handled(key)  # before the handler, which may forget the key
            try:
                wake = await handle(key, computed is not None)
                self._failures.pop(key, None)
                self._found_cached.discard(key)
                if wake is not None:
                    self.touch_at(key, wake)
            except TakesLong as refused:
                self._touched_while_running.discard(key)  # it is handled again in any case
                self._waiting.add(key)
                self._uncomputed.put(key, refused.group)
            except (ApiUnavailable, ApiError) as error:
                self._retry(key, str(error))
            except Exception as error:
                log.exception("the reconcile failed", extra=dict(self._log_fields(key)))
                self._retry(key, type(error).__name__)
            finally:
                if computed is not None:
                    computed.set()
                self._running.discard(key)
                if key in self._touched_while_running:
                    self._touched_while_running.discard(key)
                    self.touch(key)

    async def _compute(self, compute: Compute) -> None:
        while True:
            key = await self._uncomputed.get()
            try:
                if computed := await compute(key) or key in self._found_cached:
                    self._found_cached.discard(key)
                else:
                    self._found_cached.add(key)
            except (ApiUnavailable, ApiError, TakesLong):
                computed = False
            except Exception:
                computed = True  # the handler meets the same error, and reports it
            self._ready.put(key, first=True)
            if computed:
                handled = self._computed[key] = asyncio.Event()
                await handled.wait()
            else:
                await asyncio.sleep(0)  # as in `_work`
            self._uncomputed.done(key)

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
