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

    Args:
        one_of_each: whether a namespace has its next turn only when the key that was taken is `done`.
    """

    def __init__(self, *, one_of_each: bool = False) -> None:
        self._one_of_each = one_of_each
        self._waiting: dict[str, list[tuple[int, int, Key]]] = {}
        """Namespace → heap of when the key was handled last (0: never; -1: it goes first), when it was put, the key."""
        self._turns: deque[str] = deque()
        """The namespaces whose next key may be taken."""
        self._taken: set[str] = set()
        """The namespaces without a turn, because a key of them was taken."""
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
        if namespace in self._waiting:
            heapq.heappush(self._waiting[namespace], (rank, next(self._numbers), key))
            return
        self._waiting[namespace] = [(rank, next(self._numbers), key)]
        if namespace not in self._taken:
            self._give_turn(namespace)

    async def get(self) -> Key:
        """Remove the next key and return it."""
        await self._available.acquire()
        namespace = self._turns.popleft()
        *_, key = heapq.heappop(self._waiting[namespace])
        if not self._waiting[namespace]:
            del self._waiting[namespace]
        self._taken.add(namespace)
        if not self._one_of_each:
            self.done(key)
        return key

    def done(self, key: Key) -> None:
        """With `one_of_each`: the next key of this key's namespace may be taken."""
        self._taken.discard(key[0])
        if key[0] in self._waiting:
            self._give_turn(key[0])

    def _give_turn(self, namespace: str) -> None:
        self._turns.append(namespace)
        self._available.release()

    def handled(self, key: Key) -> None:
        """Note that a key was handled now."""
        self._handled[key] = next(self._numbers)

    def was_handled(self, key: Key) -> bool:
        """Whether a key was handled before, and not forgotten since."""
        return key in self._handled

    def forget(self, key: Key) -> None:
        """Forget when a key was handled: it does not exist any more."""
        self._handled.pop(key, None)
