"""Workers as threads: a channel in memory, so that a group of any size takes milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

SECONDS = 20.0


class PeerGone(Exception):
    """A worker ended while this one waited for its message."""


class Room:
    """Where the workers of one group leave their messages, round by round."""

    def __init__(self, size: int) -> None:
        self._posted: list[list[Any]] = [[] for _ in range(size)]
        self._gone: set[int] = set()
        self._changed = threading.Condition()

    def exchange(self, rank: int, item: Any) -> list[Any]:
        with self._changed:
            turn = len(self._posted[rank])
            self._posted[rank].append(item)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._missing(turn) or self._missing(turn) & self._gone, SECONDS)
            if self._missing(turn):
                raise PeerGone
            return [posted[turn] for posted in self._posted]

    def leave(self, rank: int) -> None:
        with self._changed:
            self._gone.add(rank)
            self._changed.notify_all()

    def _missing(self, turn: int) -> set[int]:
        return {rank for rank, posted in enumerate(self._posted) if len(posted) <= turn}


class ThreadChannel:
    """One worker's end. `on_message(sender, message)` and `on_vector(sender, vector)` may change what arrives here."""

    def __init__(self, room: Room, rank: int, size: int) -> None:
        self._room = room
        self.rank = rank
        self.size = size
        self.on_message: Callable[[int, bytes], bytes] = lambda sender, message: message
        self.on_vector: Callable[[int, np.ndarray], np.ndarray] = lambda sender, vector: vector

    def all_gather(self, message: bytes) -> list[bytes]:
        messages = self._room.exchange(self.rank, message)
        assert len(set(map(len, messages))) == 1
        return [self.on_message(sender, theirs) for sender, theirs in enumerate(messages)]

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        assert vector.dtype == np.uint32
        vectors = self._room.exchange(self.rank, vector)
        return sum(
            (self.on_vector(sender, theirs.copy()) for sender, theirs in enumerate(vectors)),
            np.zeros_like(vector),
        )


Workers = Callable[[int, Callable[[ThreadChannel], Any]], list[Any]]


@pytest.fixture(scope="session")
def outcomes() -> Workers:
    """`outcomes(n, work)`: what `work(channel)` returned or raised on each of n workers."""

    def run(size: int, work: Callable[[ThreadChannel], Any]) -> list[Any]:
        room = Room(size)

        def one(rank: int) -> Any:
            try:
                return work(ThreadChannel(room, rank, size))
            except Exception as error:
                return error
            finally:
                room.leave(rank)

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(one, range(size)))

    return run


@pytest.fixture(scope="session")
def workers(outcomes: Workers) -> Workers:
    """`workers(n, work)`: what `work(channel)` returned on each of n workers, none of which may fail."""

    def run(size: int, work: Callable[[ThreadChannel], Any]) -> list[Any]:
        results = outcomes(size, work)
        failures = [result for result in results if isinstance(result, Exception)]
        if failures:
            raise next((error for error in failures if not isinstance(error, PeerGone)), failures[0])
        return results

    return run
