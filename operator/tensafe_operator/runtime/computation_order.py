"""The order of long computations: neither one namespace nor one group of its jobs may hold up the others."""

from __future__ import annotations

import asyncio
from collections import deque

from tensafe_operator.runtime.objects import Key


class ComputationOrder:
    """Keys that wait for a long computation.

    Namespaces take turns, with one computation at a time each. Within one, the groups of keys take turns, so that a few
    keys of one group wait for a few of another, and not for all of them.

    Everything runs on one event loop, so nothing here is locked.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, deque[Key]]] = {}
        """Namespace → group → keys. The group whose turn is next comes first."""
        self._turns: deque[str] = deque()
        """The namespaces whose next key may be taken."""
        self._taken: set[str] = set()
        """The namespaces without a turn, because a key of them is being computed."""
        self._available = asyncio.Semaphore(0)

    def put(self, key: Key, group: str) -> None:
        """Add a key, which must not be waiting."""
        namespace = key[0]
        is_first = namespace not in self._waiting
        self._waiting.setdefault(namespace, {}).setdefault(group, deque()).append(key)
        if is_first and namespace not in self._taken:
            self._give_turn(namespace)

    async def get(self) -> Key:
        """Remove the next key and return it. Its namespace has no turn until the key is `done`."""
        await self._available.acquire()
        namespace = self._turns.popleft()
        groups = self._waiting[namespace]
        group = next(iter(groups))
        keys = groups.pop(group)
        key = keys.popleft()
        if keys:
            groups[group] = keys  # behind the other groups
        if not groups:
            del self._waiting[namespace]
        self._taken.add(namespace)
        return key

    def done(self, key: Key) -> None:
        """The key was computed: the next one of its namespace may be taken."""
        self._taken.discard(key[0])
        if key[0] in self._waiting:
            self._give_turn(key[0])

    def _give_turn(self, namespace: str) -> None:
        self._turns.append(namespace)
        self._available.release()
