"""Lets code that must return soon, such as an event loop, refuse long computations, or limit how many it waits for.

A figure that is cached needs no computation, so put `lru_cache` above `long_computation`:

>>> @functools.lru_cache
... @long_computation
... def square(number):
...     return number * number
>>> square(3)
9
>>> with only_short_computations():
...     square(3), square(4)
Traceback (most recent call last):
    ...
tensafe_api.long_computations.LongComputationError: square

A computation that has begun is finished. So code that is called again, with what is cached, gets further each time:

>>> with limited_computations(seconds=0, at_least=2):
...     square(5), square(6), square(7)
Traceback (most recent call last):
    ...
tensafe_api.long_computations.LongComputationError: square
>>> with only_short_computations():
...     square(5), square(6)
(25, 36)
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LongComputationError(Exception):
    """A figure that takes a tenth of a second or more has to be computed, where no more of them are allowed."""


class _Limit:
    """How many long computations a block may still begin."""

    def __init__(self, seconds: float, at_least: int) -> None:
        self._until, self._at_least = time.monotonic() + seconds, at_least

    def begin(self, name: str) -> None:
        if self._at_least <= 0 and time.monotonic() >= self._until:
            raise LongComputationError(name)
        self._at_least -= 1


_limit: ContextVar[_Limit | None] = ContextVar("limit", default=None)


def only_short_computations() -> contextlib.AbstractContextManager[None]:
    """Refuse long computations in this block, in this thread or task."""
    return limited_computations(seconds=0.0, at_least=0)


@contextlib.contextmanager
def limited_computations(*, seconds: float, at_least: int) -> Iterator[None]:
    """Refuse long computations in this block, in this thread or task, once it has taken `seconds` and `at_least` of
    them have begun. Those that a long computation needs itself are not counted.
    """
    before = _limit.set(_Limit(seconds, at_least))
    try:
        yield
    finally:
        _limit.reset(before)


def long_computation(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function whose call takes a tenth of a second or more. Its calls raise LongComputationError where no more
    of them are allowed.
    """

    @functools.wraps(function)
    def marked(*args: P.args, **kwargs: P.kwargs) -> T:
        limit = _limit.get()
        if limit is None:
            return function(*args, **kwargs)
        limit.begin(function.__name__)
        within = _limit.set(None)
        try:
            return function(*args, **kwargs)
        finally:
            _limit.reset(within)

    return marked
