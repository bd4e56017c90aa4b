"""Lets code that must return soon, such as an event loop, refuse long computations.

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
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_refused: ContextVar[bool] = ContextVar("refused", default=False)


class LongComputationError(Exception):
    """A figure that takes a tenth of a second or more has to be computed, where only short computations are allowed."""


@contextlib.contextmanager
def only_short_computations() -> Iterator[None]:
    """Refuse long computations in this block, in this thread or task."""
    before = _refused.set(True)
    try:
        yield
    finally:
        _refused.reset(before)


def long_computation(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function whose call takes a tenth of a second or more. Its calls raise LongComputationError inside
    `only_short_computations`.
    """

    @functools.wraps(function)
    def marked(*args: P.args, **kwargs: P.kwargs) -> T:
        if _refused.get():
            raise LongComputationError(function.__name__)
        return function(*args, **kwargs)

    return marked
