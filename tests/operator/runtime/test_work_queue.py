"""A key is queued and handled once at a time, handled again if touched meanwhile, and retried if its handler fails."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from tensafe_operator.runtime import work_queue
from tensafe_operator.runtime.api_errors import ApiUnavailable
from tensafe_operator.runtime.objects import Key
from tensafe_operator.runtime.work_queue import WorkQueue
from tests.support.served_queue import drive

ONE, TWO = ("clinic", "one"), ("clinic", "two")


def test_waiting_key_is_queued_once_and_running_key_runs_again() -> None:
    ran: list[Key] = []
    running, resume, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(key: Key) -> None:
        ran.append(key)
        running.set()
        await resume.wait()
        if len(ran) == 2:
            done.set()

    async def scenario(queue: WorkQueue) -> None:
        queue.touch(ONE)
        queue.touch(ONE)
        await running.wait()
        for _ in range(3):
            queue.touch(ONE)
        await asyncio.sleep(0)
        assert ran == [ONE], "a key was handled twice at the same time"
        resume.set()
        await done.wait()
        await asyncio.sleep(0.05)
        assert ran == [ONE, ONE]

    drive(handle, scenario)


def test_depth_counts_each_waiting_key_once() -> None:
    async def handle(key: Key) -> None:
        running.set()
        await resume.wait()

    async def scenario(queue: WorkQueue) -> None:
        for key in (ONE, ONE, TWO):
            queue.touch(key)
        assert queue.depth == 2
        await running.wait()
        await asyncio.sleep(0)
        assert queue.depth == 0, "keys that are being handled do not wait"
        resume.set()

    running, resume = asyncio.Event(), asyncio.Event()
    drive(handle, scenario)


def test_different_keys_are_handled_concurrently() -> None:
    both = asyncio.Barrier(2)

    async def handle(key: Key) -> None:
        await both.wait()

    async def scenario(queue: WorkQueue) -> None:
        queue.touch(ONE)
        queue.touch(TWO)
        while both.n_waiting or not both.parties:
            await asyncio.sleep(0)

    drive(handle, scenario)


def test_event_loop_runs_other_tasks_between_keys_whose_handler_awaits_nothing() -> None:
    """Also where only one worker is free, because the API server does not answer the others."""
    slow = [("clinic", f"slow-{number}") for number in range(work_queue.WORKERS - 1)]
    quick = [("clinic", f"quick-{number}") for number in range(20)]
    handled: list[Key] = []
    answer = asyncio.Event()

    async def handle(key: Key) -> None:
        handled.append(key)
        if key in slow:
            await answer.wait()

    async def scenario(queue: WorkQueue) -> None:
        for key in slow:
            queue.touch(key)
        while len(handled) < len(slow):
            await asyncio.sleep(0)
        for key in quick:
            queue.touch(key)
        seen = [len(handled)]
        while seen[-1] < len(slow) + len(quick):
            await asyncio.sleep(0)
            seen.append(len(handled))
        assert max(after - before for before, after in itertools.pairwise(seen)) == 1
        answer.set()

    drive(handle, scenario)


def test_earliest_alarm_touches_the_key_once() -> None:
    ran: list[float] = []
    handled = asyncio.Event()

    async def handle(key: Key) -> None:
        ran.append(time.time())
        handled.set()

    async def scenario(queue: WorkQueue) -> None:
        now = time.time()
        queue.touch_at(ONE, now + 60)
        queue.touch_at(ONE, now + 0.1)
        queue.touch_at(ONE, now + 0.2)
        await handled.wait()
        await asyncio.sleep(0.3)
        assert len(ran) == 1 and 0.09 <= ran[0] - now < 50

    drive(handle, scenario)


def test_failed_key_is_retried_with_a_growing_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "FIRST_RETRY_SECONDS", 0.02)
    tries, waits = itertools.count(1), []
    done = asyncio.Event()
    touch_at = WorkQueue.touch_at

    def record(queue: WorkQueue, key: Key, when: float) -> None:
        waits.append(when - time.time())
        touch_at(queue, key, when)

    monkeypatch.setattr(WorkQueue, "touch_at", record)

    async def handle(key: Key) -> None:
        if (number := next(tries)) < 4:
            raise ApiUnavailable("the API server does not answer") if number % 2 else ValueError("a bug")
        done.set()

    async def scenario(queue: WorkQueue) -> None:
        queue.touch(ONE)
        await done.wait()

    drive(handle, scenario)
    assert waits == pytest.approx([0.02, 0.04, 0.08], abs=0.01)


def test_handler_returns_when_to_be_called_again() -> None:
    ran: list[Key] = []
    done = asyncio.Event()

    async def handle(key: Key) -> float | None:
        ran.append(key)
        if len(ran) == 2:
            done.set()
            return None
        return time.time() + 0.05

    async def scenario(queue: WorkQueue) -> None:
        queue.touch(ONE)
        await done.wait()

    drive(handle, scenario)


def test_nothing_is_kept_of_a_key_that_its_handler_forgets() -> None:
    queues: list[WorkQueue] = []
    handled = asyncio.Event()

    async def handle(key: Key) -> None:
        queues[0].forget(key)
        handled.set()

    async def scenario(queue: WorkQueue) -> None:
        queues.append(queue)
        queue.touch_at(ONE, time.time() + 3600)
        queue.touch(ONE)
        await handled.wait()
        await asyncio.sleep(0.01)
        assert ONE not in queue._due

    drive(handle, scenario)
