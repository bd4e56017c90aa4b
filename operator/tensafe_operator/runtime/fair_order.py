"""The order in which waiting keys are handled: one busy namespace, or one busy key, must not hold up the others."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque

from tensafe_operator.runtime.objects import Key


class FairOrder:
    """Waiting keys. Namespaces take turns, and within one the key goes first that was handled the longest ago.

    A new key was never handled, so it goes before the keys that are only handled again. Everything runs on one event
    loop, so nothing here is locked.

    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[int, int, Key]]] = {}
        """Namespace → heap of when the key was handled last (0: never; -1: it goes first), when it was put, the key."""
        self._turns: deque[str] = deque()
        self._handled: dict[Key, int] = {}
        self._available = asyncio.Semaphore(0)
        self._numbers = itertools.count(1)

    def put(self, key: Key, *, first: bool = False) -> None:
        """Add a key, which must not be waiting.

        Args:
            first: whether it goes before all other keys of its namespace, because it has had its turn.
        """
        namespace = key[0]
        rank = -1 if first else self._handled.get(key, 0)
        if namespace not in self._waiting:
            self._waiting[namespace] = []
            self._turns.append(namespace)
        heapq.heappush(self._waiting[namespace], (rank, next(self._numbers), key))
        self._available.release()

    async def get(self) -> Key:
        """Remove the next key and return it."""
        await self._available.acquire()
        namespace = self._turns.popleft()
        *_, key = heapq.heappop(self._waiting[namespace])
        if self._waiting[namespace]:
            self._turns.append(namespace)
        else:
            del self._waiting[namespace]
        return key

    def handled(self, key: Key) -> None:
        """Note that a key was handled now."""
        self._handled[key] = next(self._numbers)

    def forget(self, key: Key) -> None:
        """Forget when a key was handled: it does not exist any more."""
        self._handled.pop(key, None)
