"""A key is queued and handled once at a time, handled again if touched meanwhile, and retried if its handler fails."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable

import pytest

from tensafe_operator.runtime import work_queue
from tensafe_operator.runtime.api_client import ApiUnavailable
from tensafe_operator.runtime.objects import Key
from tensafe_operator.runtime.work_queue import Compute, Handler, TakesLong, WorkQueue

ONE, TWO = ("clinic", "one"), ("clinic", "two")


def drive(handle: Callable[[Key], Awaitable[float | None]], scenario: Callable[[WorkQueue], Awaitable[None]]) -> None:
    """Run the scenario while the queue is being served."""

    async def compute(key: Key) -> bool:
        raise AssertionError("nothing takes long")

    drive_both(lambda key, computed: handle(key), compute, scenario)


def drive_both(handle: Handler, compute: Compute, scenario: Callable[[WorkQueue], Awaitable[None]]) -> None:
    """The same, with a handler that may raise `TakesLong`."""

    async def run() -> None:
        queue = WorkQueue()
        serving = asyncio.create_task(queue.run(handle, compute))
        try:
            await asyncio.wait_for(scenario(queue), 120)
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    asyncio.run(run())


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


def test_long_computations_of_many_keys_do_not_hold_up_another() -> None:
    """More keys take long than there are workers."""
    numbers = range(2 * work_queue.WORKERS)
    slow = [(namespace, f"slow-{number}") for number in numbers for namespace in ("clinic", "lab")]
    computing: list[Key] = []
    started, finish, handled, all_slow = (asyncio.Event() for _ in range(4))
    done: list[Key] = []

    async def compute(key: Key) -> bool:
        computing.append(key)
        if len(computing) == work_queue.COMPUTATIONS:
            started.set()
        await finish.wait()
        return True

    async def handle(key: Key, computed: bool) -> None:
        if key == ONE:
            handled.set()
        elif not computed:
            raise TakesLong
        else:
            done.append(key)
            if len(done) == len(slow):
                all_slow.set()

    async def scenario(queue: WorkQueue) -> None:
        for key in slow:
            queue.touch(key)
        await started.wait()
        queue.touch(ONE)
        await handled.wait()
        assert not done
        assert len(computing) == work_queue.COMPUTATIONS, "more computations than cores"
        finish.set()
        await all_slow.wait()
        assert sorted(done) == sorted(computing) == sorted(slow)

    drive_both(handle, compute, scenario)


def test_slow_keys_of_one_namespace_leave_a_computation_to_the_others() -> None:
    slow = [("busy", f"slow-{number}") for number in range(4)]
    computing: list[Key] = []
    finish, other = asyncio.Event(), asyncio.Event()

    async def compute(key: Key) -> bool:
        computing.append(key)
        if key == ONE:
            other.set()
        else:
            await finish.wait()
        return True

    async def handle(key: Key, computed: bool) -> None:
        if not computed:
            raise TakesLong

    async def scenario(queue: WorkQueue) -> None:
        for key in slow:
            queue.touch(key)
        while not computing:
            await asyncio.sleep(0)
        queue.touch(ONE)
        await other.wait()
        assert computing == [slow[0], ONE]
        finish.set()
        while len(computing) < 5:
            await asyncio.sleep(0)
        assert sorted(computing) == sorted([*slow, ONE])

    drive_both(handle, compute, scenario)


def test_namespace_has_one_computation_until_its_key_was_handled() -> None:
    """The handler computes what has changed since, and that may take longer than the computation."""
    busy = [("busy", f"job-{number}") for number in range(2 * work_queue.WORKERS)]
    computing: list[Key] = []
    handling: list[Key] = []
    finish, other = asyncio.Event(), asyncio.Event()

    async def compute(key: Key) -> bool:
        computing.append(key)
        return True

    async def handle(key: Key, computed: bool) -> None:
        if not computed:
            raise TakesLong
        handling.append(key)
        if key == ONE:
            other.set()
        else:
            await finish.wait()

    async def scenario(queue: WorkQueue) -> None:
        for key in busy:
            queue.touch(key)
        while not handling:
            await asyncio.sleep(0)
        queue.touch(ONE)
        await other.wait()
        assert computing == handling == [busy[0], ONE]
        finish.set()
        while len(handling) < len(busy) + 1:
            await asyncio.sleep(0)
        assert sorted(handling) == sorted([*busy, ONE])

    drive_both(handle, compute, scenario)


def test_computation_that_is_too_much_for_one_turn_continues_in_the_next() -> None:
    ran: list[str] = []
    done = asyncio.Event()

    async def compute(key: Key) -> bool:
        ran.append("compute")
        if ran.count("compute") in (1, 2):
            raise TakesLong
        return True

    async def handle(key: Key, computed: bool) -> None:
        ran.append("handle after it" if computed else "handle")
        if not computed or ran.count("handle after it") == 1:
            raise TakesLong
        done.set()

    async def scenario(queue: WorkQueue) -> None:
        queue.touch(ONE)
        await done.wait()
        turn = ["handle", "compute"]
        assert ran == [*turn, *turn, *turn, "handle after it", "compute", "handle after it"]

    drive_both(handle, compute, scenario)


def test_key_that_is_touched_while_it_is_computed_is_handled_once_more() -> None:
    ran: list[bool] = []
    computing, finish, done = (asyncio.Event() for _ in range(3))
    queues: list[WorkQueue] = []

    async def compute(key: Key) -> bool:
        computing.set()
        await finish.wait()
        return True

    async def handle(key: Key, computed: bool) -> None:
        ran.append(computed)
        if not computed:
            queues[0].touch(key)  # while it is being handled
            raise TakesLong
        done.set()

    async def scenario(queue: WorkQueue) -> None:
        queues.append(queue)
        queue.touch(ONE)
        await computing.wait()
        queue.touch(ONE)
        finish.set()
        await done.wait()
        await asyncio.sleep(0.05)
        assert ran == [False, True] and queue.depth == 0

    drive_both(handle, compute, scenario)


def test_error_of_a_long_computation_is_left_to_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports the error, and is called again later."""
    monkeypatch.setattr(work_queue, "FIRST_RETRY_SECONDS", 0.01)
    ran: list[bool] = []
    done = asyncio.Event()

    async def compute(key: Key) -> bool:
        raise ValueError("a bug")

    async def handle(key: Key, computed: bool) -> None:
        ran.append(computed)
        if len(ran) == 4:
            done.set()
        if not computed:
            raise TakesLong
        await compute(key)

    async def scenario(queue: WorkQueue) -> None:
        queue.touch(ONE)
        await done.wait()
        assert ran == [False, True, False, True]

    drive_both(handle, compute, scenario)


def test_key_that_was_deleted_before_its_computation_is_not_computed_by_its_handler() -> None:
    """It may exist again under the same name, and would take a worker from the others."""
    ran: list[bool] = []
    done = asyncio.Event()

    async def compute(key: Key) -> bool:
        return len(ran) > 1

    async def handle(key: Key, computed: bool) -> None:
        ran.append(computed)
        if not computed:
            raise TakesLong
        done.set()

    async def scenario(queue: WorkQueue) -> None:
        queue.touch(ONE)
        await done.wait()
        assert ran == [False, False, True]

    drive_both(handle, compute, scenario)


def test_keys_of_one_group_are_computed_in_turn_with_those_of_another() -> None:
    """Also where the jobs that have ended need new figures without a pause, a new job gets its own."""
    ended = [("clinic", f"ended-{number}") for number in range(5)]
    done = asyncio.Event()
    computed: list[Key] = []
    queues: list[WorkQueue] = []

    async def compute(key: Key) -> bool:
        computed.append(key)
        await asyncio.sleep(0.001)
        return True

    async def handle(key: Key, after_computation: bool) -> None:
        if not after_computation:
            raise TakesLong(group="new" if key == ONE else "ended")
        if key == ONE:
            done.set()
        else:
            queues[0].touch(key)

    async def scenario(queue: WorkQueue) -> None:
        queues.append(queue)
        for key in ended:
            queue.touch(key)
        while len(computed) < 7:
            await asyncio.sleep(0.001)
        before = len(computed)
        queue.touch(ONE)
        await asyncio.wait_for(done.wait(), 10)
        assert computed[before:].index(ONE) <= 2

    drive_both(handle, compute, scenario)


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
        assert ONE not in queue._ready._handled and ONE not in queue._due

    drive(handle, scenario)
