"""Computes the privacy figures that decisions ask for, in threads beside the queue.

Calibrating the noise of a new job takes up to ten seconds, and an ε up to three. Each figure of a job is computed once
and kept for as long as its decisions ask for it. Jobs with equal mechanisms share the work: `tensafe_api.accounting`
keeps what it has computed. The ε of a job that trains waits for no new job: what is computed once for a job has a
thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tensafe_operator import names
from tensafe_operator.decision.figures import Epsilon, Figure
from tensafe_operator.runtime.objects import Key

log = logging.getLogger(__name__)
Figures = Collection[Figure[Any]]


class Accountant:
    """The figures of all jobs. Everything but the computing runs on one event loop, so nothing here is locked.

    Args:
        touch: called with the key of a job when figures that it has asked for are there.
    """

    def __init__(self, touch: Callable[[Key], object]) -> None:
        self._touch = touch
        self._known: dict[Key, dict[Figure[Any], Any]] = {}
        self._of_new_jobs: asyncio.Queue[tuple[Key, Figures]] = asyncio.Queue()
        self._of_training: asyncio.Queue[tuple[Key, Figures]] = asyncio.Queue()
        self._waiting: set[tuple[Key, Figure[Any]]] = set()

    def known(self, key: Key) -> Mapping[Figure[Any], Any]:
        """The figures of a job. In place of one that could not be computed is the error. It is computed again, and the
        job is touched if that succeeds.
        """
        known = self._known.get(key, {})
        self._enqueue(key, [figure for figure, value in known.items() if isinstance(value, Exception)])
        return known

    def ask(self, key: Key, figures: Iterable[Figure[Any]]) -> None:
        """Compute those of these figures that are not known, and forget all others of the job."""
        wanted, known = dict.fromkeys(figures), self._known.get(key, {})
        self._known[key] = {figure: value for figure, value in known.items() if figure in wanted}
        self._enqueue(key, [figure for figure in wanted if figure not in known])

    def forget(self, key: Key) -> None:
        """Keep nothing about a job that does not exist any more."""
        self._known.pop(key, None)

    async def run(self) -> None:
        """Compute figures until cancelled."""
        queues = (self._of_new_jobs, self._of_training)
        threads = ThreadPoolExecutor(len(queues), "accounting")
        try:
            async with asyncio.TaskGroup() as group:
                for queue in queues:
                    group.create_task(self._compute(queue, threads))
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # the Lease is given up before a computation ends

    def _enqueue(self, key: Key, figures: Figures) -> None:
        asked = [figure for figure in figures if (key, figure) not in self._waiting]
        self._waiting.update((key, figure) for figure in asked)
        of_training = [figure for figure in asked if isinstance(figure, Epsilon)]
        of_new_job = [figure for figure in asked if not isinstance(figure, Epsilon)]
        for queue, together in ((self._of_training, of_training), (self._of_new_jobs, of_new_job)):
            if together:
                queue.put_nowait((key, together))

    async def _compute(self, queue: asyncio.Queue[tuple[Key, Figures]], threads: ThreadPoolExecutor) -> None:
        while True:
            key, figures = await queue.get()
            found = await asyncio.get_running_loop().run_in_executor(threads, _computed, key, figures)
            self._waiting.difference_update((key, figure) for figure in figures)
            known = self._known.get(key)
            if known is None:
                continue
            news = [f for f in figures if not (isinstance(found[f], Exception) and isinstance(known.get(f), Exception))]
            known.update(found)
            if news:  # the queue repeats a decision that fails
                self._touch(key)


def _computed(key: Key, figures: Figures) -> dict[Figure[Any], Any]:
    """The figures, or in place of one the error."""
    found: dict[Figure[Any], Any] = {}
    for figure in figures:
        try:
            found[figure] = figure.compute()
        except Exception as error:
            log.exception("a privacy figure could not be computed", extra=names.log_fields(*key))
            found[figure] = error
    return found
