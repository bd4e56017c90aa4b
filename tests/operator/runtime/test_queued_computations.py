"""A key whose handler would compute for long waits for its turn. Meanwhile the keys of other namespaces are handled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from e2e.platform.fixtures.served_queue import drive_both
from tensafe_operator.runtime import work_queue
from tensafe_operator.runtime.objects import Key
from tensafe_operator.runtime.work_queue import TakesLong, WorkQueue

ONE = ("clinic", "one")


def handler_of_computed_keys() -> tuple[list[bool], asyncio.Event, Callable[[Key, bool], Awaitable[None]]]:
    """Whether the key of each call was computed; the event that is set once one was; the handler."""
    ran: list[bool] = []
    done = asyncio.Event()

    async def handle(key: Key, computed: bool) -> None:
        ran.append(computed)
        if not computed:
            raise TakesLong
        done.set()

    return ran, done, handle


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


@pytest.mark.parametrize("slow", ["computation", "handler after it"])
def test_slow_keys_of_one_namespace_leave_a_computation_to_the_others(slow: str) -> None:
    """The handler after a computation computes what has changed since, and may take as long."""
    busy = [("busy", f"job-{number}") for number in range(2 * work_queue.WORKERS)]
    computing: list[Key] = []
    handling: list[Key] = []
    finish, other = asyncio.Event(), asyncio.Event()

    async def compute(key: Key) -> bool:
        computing.append(key)
        if key != ONE and slow == "computation":
            await finish.wait()
        return True

    async def handle(key: Key, computed: bool) -> None:
        if not computed:
            raise TakesLong
        handling.append(key)
        if key == ONE:
            other.set()
        elif slow == "handler after it":
            await finish.wait()

    async def scenario(queue: WorkQueue) -> None:
        for key in busy:
            queue.touch(key)
        while not (computing if slow == "computation" else handling):
            await asyncio.sleep(0)
        queue.touch(ONE)
        await other.wait()
        assert computing == [busy[0], ONE]
        assert handling == ([ONE] if slow == "computation" else [busy[0], ONE])
        finish.set()
        while len(handling) < len(busy) + 1:
            await asyncio.sleep(0)
        assert sorted(computing) == sorted(handling) == sorted([*busy, ONE])

    drive_both(handle, compute, scenario)


def test_keys_whose_figures_were_computed_for_another_do_not_wait_for_one_another() -> None:
    """A thousand equal jobs need one computation. Each handler writes to the API server, which takes its time."""
    first, *others = jobs = [("busy", f"job-{number}") for number in range(work_queue.WORKERS)]
    refused: list[Key] = []
    handled: list[tuple[Key, bool]] = []
    together = asyncio.Barrier(len(others))

    async def compute(key: Key) -> bool:
        return key == first

    async def handle(key: Key, computed: bool) -> None:
        if key not in refused:
            refused.append(key)
            raise TakesLong
        if key != first:
            await together.wait()
        handled.append((key, computed))

    async def scenario(queue: WorkQueue) -> None:
        for key in jobs:
            queue.touch(key)
        while len(handled) < len(jobs):
            await asyncio.sleep(0)
        assert sorted(handled) == sorted([(first, True), *((key, False) for key in others)])

    drive_both(handle, compute, scenario)


def test_event_loop_runs_other_tasks_between_keys_whose_figures_are_cached() -> None:
    """Also where the other computation continues, so that one task takes all these keys from the queue."""
    jobs = [("busy", f"job-{number}") for number in range(work_queue.WORKERS)]
    computing: list[Key] = []
    begun, finish = asyncio.Event(), asyncio.Event()
    refused: set[Key] = set()

    async def compute(key: Key) -> bool:
        computing.append(key)
        if key == ONE:
            begun.set()
            await finish.wait()
        return False

    async def handle(key: Key, computed: bool) -> None:
        if key not in refused:
            refused.add(key)
            raise TakesLong

    async def scenario(queue: WorkQueue) -> None:
        queue.touch(ONE)
        await begun.wait()
        for key in jobs:
            queue.touch(key)
        seen = [len(computing)]
        while seen[-1] < 1 + len(jobs):
            await asyncio.sleep(0)
            seen.append(len(computing))
        assert max(after - before for before, after in itertools.pairwise(seen)) == 1
        finish.set()

    drive_both(handle, compute, scenario)


def test_handler_that_needs_more_than_what_was_computed_computes_it_in_its_next_turn() -> None:
    """It may have read an object that is newer than the cache, again and again."""
    ran, done, handle = handler_of_computed_keys()

    async def compute(key: Key) -> bool:
        return False

    async def scenario(queue: WorkQueue) -> None:
        for _ in range(2):
            queue.touch(ONE)
            await done.wait()
            done.clear()
        assert ran == 2 * [False, False, True]

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
    ran, done, handle = handler_of_computed_keys()

    async def compute(key: Key) -> bool:
        return len(ran) > 1

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
