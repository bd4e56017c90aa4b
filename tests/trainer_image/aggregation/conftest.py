"""Groups of workers that are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.trainer.thread_group import ThreadChannel, outcomes_of, results_of

Workers = Callable[[int, Callable[[ThreadChannel], Any]], list[Any]]


@pytest.fixture(scope="session")
def outcomes() -> Workers:
    """`outcomes(n, work)`: the result or the exception of `work(channel)` on each of n workers."""
    return outcomes_of


@pytest.fixture(scope="session")
def workers() -> Workers:
    """`workers(n, work)`: the result of `work(channel)` on each of n workers, none of which may fail."""
    return results_of
