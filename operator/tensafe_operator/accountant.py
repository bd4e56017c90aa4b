"""Computes the privacy figures that decisions ask for, in threads beside the queue.

Calibrating the noise of a new job takes up to ten seconds, and an ε up to three. Each figure of a job is computed once
and kept for as long as its decisions ask for it. Jobs with equal mechanisms share the work: `tensafe_api.accounting`
keeps what it has computed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tensafe_operator import names
from tensafe_operator.plan.figures import Figure
from tensafe_operator.runtime.objects import Key

THREADS = 2
log = logging.getLogger(__name__)


class Accountant:
    """The figures of all jobs. Everything but the computing runs on one event loop, so nothing here is locked.

    Args:
        touch: called with the key of a job when a figure that it has asked for is there.
    """

    def __init__(self, touch: Callable[[Key], object]) -> None:
        self._touch = touch
        self._known: dict[Key, dict[Figure[Any], Any]] = {}
        self._asked: asyncio.Queue[tuple[Key, Figure[Any]]] = asyncio.Queue()
        self._waiting: set[tuple[Key, Figure[Any]]] = set()

    def known(self, key: Key) -> Mapping[Figure[Any], Any]:
        """The figures of a job. In place of one that could not be computed is the error, once: the next decision asks
        for it again.
        """
        known = self._known.get(key, {})
        self._known[key] = {figure: value for figure, value in known.items() if not isinstance(value, Exception)}
        return known

    def ask(self, key: Key, figures: Iterable[Figure[Any]]) -> None:
        """Compute those of these figures that are not known, and forget all others of the job."""
        wanted, known = set(figures), self._known.get(key, {})
        self._known[key] = {figure: value for figure, value in known.items() if figure in wanted}
        for figure in figures:
            if figure not in known and (key, figure) not in self._waiting:
                self._waiting.add((key, figure))
                self._asked.put_nowait((key, figure))

    def forget(self, key: Key) -> None:
        """Keep nothing about a job that does not exist any more."""
        self._known.pop(key, None)

    async def run(self) -> None:
        """Compute figures until cancelled."""
        with ThreadPoolExecutor(THREADS, "accounting") as threads:
            async with asyncio.TaskGroup() as group:
                for _ in range(THREADS):
                    group.create_task(self._compute(threads))

    async def _compute(self, threads: ThreadPoolExecutor) -> None:
        while True:
            key, figure = await self._asked.get()
            try:
                value = await asyncio.get_running_loop().run_in_executor(threads, figure.compute)
            except Exception as error:
                log.exception("a privacy figure could not be computed", extra=names.log_fields(*key))
                value = error
            self._waiting.discard((key, figure))
            if key in self._known:
                self._known[key][figure] = value
                self._touch(key)
