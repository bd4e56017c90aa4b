"""Workers as threads with a channel in memory, so that a group of any size starts in milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

# A worker that ends or fails wakes those that wait for it. The limit ends a group whose workers wait for each other.
SECONDS = 300.0


class PeerLost(Exception):
    """A worker ended while this one waited for its message."""


class Exchange:
    """Holds the messages of the workers of one group, round by round."""

    def __init__(self, size: int) -> None:
        self._posted: list[list[Any]] = [[] for _ in range(size)]
        self._lost: set[int] = set()
        self._changed = threading.Condition()

    def all_gather(self, rank: int, item: Any) -> list[Any]:
        with self._changed:
            turn = len(self._posted[rank])
            self._posted[rank].append(item)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._missing(turn) or self._missing(turn) & self._lost, SECONDS)
            if self._missing(turn):
                raise PeerLost
            return [posted[turn] for posted in self._posted]

    def leave(self, rank: int) -> None:
        with self._changed:
            self._lost.add(rank)
            self._changed.notify_all()

    def _missing(self, turn: int) -> set[int]:
        return {rank for rank, posted in enumerate(self._posted) if len(posted) <= turn}


class ThreadChannel:
    """The channel of one worker. `on_message(sender, message)` and `on_vector(sender, vector)` may change the data."""

    def __init__(self, exchange: Exchange, rank: int, size: int) -> None:
        self._exchange = exchange
        self.rank = rank
        self.size = size
        self.on_message: Callable[[int, bytes], bytes] = lambda sender, message: message
        self.on_vector: Callable[[int, np.ndarray], np.ndarray] = lambda sender, vector: vector

    def all_gather(self, message: bytes) -> list[bytes]:
        messages = self._exchange.all_gather(self.rank, message)
        assert len(set(map(len, messages))) == 1
        return [self.on_message(sender, theirs) for sender, theirs in enumerate(messages)]

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        assert vector.dtype == np.uint32
        vectors = self._exchange.all_gather(self.rank, vector.copy())
        return sum(
            (self.on_vector(sender, theirs.copy()) for sender, theirs in enumerate(vectors)),
            np.zeros_like(vector),
        )


def outcomes_of(size: int, work: Callable[[ThreadChannel], Any]) -> list[Any]:
    """The result or the exception of `work(channel)` on each of `size` workers."""
    exchange = Exchange(size)

    def one(rank: int) -> Any:
        try:
            return work(ThreadChannel(exchange, rank, size))
        except Exception as error:
            return error
        finally:
            exchange.leave(rank)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def results_of(size: int, work: Callable[[ThreadChannel], Any]) -> list[Any]:
    """The result of `work(channel)` on each of `size` workers, none of which may fail."""
    results = outcomes_of(size, work)
    failures = [result for result in results if isinstance(result, Exception)]
    if failures:
        raise next((error for error in failures if not isinstance(error, PeerLost)), failures[0])
    return results
