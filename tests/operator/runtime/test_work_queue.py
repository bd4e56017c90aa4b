"""The queue: each key once, one at a time, again when it was touched meanwhile, later when it failed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable

import pytest

from tensafe_operator.runtime import work_queue as module
from tensafe_operator.runtime.api_client import ApiUnavailable
from tensafe_operator.runtime.cache import Key
from tensafe_operator.runtime.work_queue import WorkQueue

ONE, TWO = ("clinic", "one"), ("clinic", "two")


def drive(handle: Callable[[Key], Awaitable[float | None]], story: Callable[[WorkQueue], Awaitable[None]]) -> None:
    """Let the story happen while the queue is served."""

    async def run() -> None:
        work = WorkQueue()
        serving = asyncio.create_task(work.run(handle))
        try:
            await asyncio.wait_for(story(work), 120)
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    asyncio.run(run())


def test_a_key_that_waits_is_not_queued_twice_and_one_that_runs_runs_again() -> None:
    ran: list[Key] = []
    running, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(key: Key) -> None:
        ran.append(key)
        running.set()
        await go_on.wait()
        if len(ran) == 2:
            done.set()

    async def story(work: WorkQueue) -> None:
        work.touch(ONE)
        work.touch(ONE)
        await running.wait()
        for _ in range(3):
            work.touch(ONE)
        await asyncio.sleep(0)
        assert ran == [ONE], "a key ran beside itself"
        go_on.set()
        await done.wait()
        await asyncio.sleep(0.05)
        assert ran == [ONE, ONE]

    drive(handle, story)


def test_different_keys_run_side_by_side() -> None:
    both = asyncio.Barrier(2)

    async def handle(key: Key) -> None:
        await both.wait()

    async def story(work: WorkQueue) -> None:
        work.touch(ONE)
        work.touch(TWO)
        while both.n_waiting or not both.parties:
            await asyncio.sleep(0)

    drive(handle, story)


def test_an_alarm_rings_once_and_the_earlier_one_counts() -> None:
    ran: list[float] = []
    rung = asyncio.Event()

    async def handle(key: Key) -> None:
        ran.append(time.time())
        rung.set()

    async def story(work: WorkQueue) -> None:
        now = time.time()
        work.at(ONE, now + 60)
        work.at(ONE, now + 0.1)
        work.at(ONE, now + 0.2)
        await rung.wait()
        await asyncio.sleep(0.3)
        assert len(ran) == 1 and 0.09 <= ran[0] - now < 50

    drive(handle, story)


def test_what_fails_is_tried_again_later_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY", 0.02)
    ran: list[float] = []
    done = asyncio.Event()

    async def handle(key: Key) -> None:
        ran.append(time.monotonic())
        if len(ran) < 4:
            raise ApiUnavailable("the API server does not answer") if len(ran) % 2 else ValueError("a bug")
        done.set()

    async def story(work: WorkQueue) -> None:
        work.touch(ONE)
        await done.wait()
        waits = [after - before for before, after in itertools.pairwise(ran)]
        assert waits[0] < waits[1] < waits[2]

    drive(handle, story)


def test_a_handler_says_when_to_come_back() -> None:
    ran: list[Key] = []
    done = asyncio.Event()

    async def handle(key: Key) -> float | None:
        ran.append(key)
        if len(ran) == 2:
            done.set()
            return None
        return time.time() + 0.05

    async def story(work: WorkQueue) -> None:
        work.touch(ONE)
        await done.wait()

    drive(handle, story)
