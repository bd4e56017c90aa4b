"""Namespaces take turns, and a key that is handled often lets others go first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tensafe_operator.runtime.fair_order import FairOrder
from tensafe_operator.runtime.objects import Key


def run(scenario: Callable[[FairOrder], Awaitable[None]]) -> None:
    async def within_limit() -> None:
        await asyncio.wait_for(scenario(FairOrder()), 10)

    asyncio.run(within_limit())


async def take(order: FairOrder, count: int) -> list[Key]:
    """Take so many keys, and handle each."""
    taken = []
    for _ in range(count):
        taken.append(await order.get())
        order.handled(taken[-1])
    return taken


def test_thousand_jobs_of_one_namespace_do_not_hold_up_another() -> None:
    async def scenario(order: FairOrder) -> None:
        for number in range(1000):
            order.put(("busy", f"job-{number}"))
        order.put(("clinic", "one"))
        order.put(("clinic", "two"))
        first = await take(order, 4)
        assert first == [("busy", "job-0"), ("clinic", "one"), ("busy", "job-1"), ("clinic", "two")]
        assert await take(order, 998) == [("busy", f"job-{number}") for number in range(2, 1000)]

    run(scenario)


def test_new_job_goes_before_jobs_that_are_handled_again() -> None:
    old = [("clinic", f"old-{number}") for number in range(3)]

    async def scenario(order: FairOrder) -> None:
        for key in old:
            order.put(key)
        await take(order, 3)
        for key in reversed(old):
            order.put(key)
        order.put(("clinic", "new"))
        assert await take(order, 4) == [("clinic", "new"), *old], "then the one that was handled the longest ago"

    run(scenario)


def test_key_that_was_taken_and_not_handled_stays_new() -> None:
    new, old = ("clinic", "new"), ("clinic", "old")

    async def scenario(order: FairOrder) -> None:
        order.put(old)
        await take(order, 1)
        order.put(new)
        assert await order.get() == new
        for key in (old, new):
            order.put(key)
        assert await take(order, 2) == [new, old]

    run(scenario)


def test_key_that_has_had_its_turn_goes_first_in_its_namespace() -> None:
    one, two, three = ("clinic", "one"), ("clinic", "two"), ("clinic", "three")

    async def scenario(order: FairOrder) -> None:
        order.put(one)
        order.put(("other", "one"))
        order.put(two)
        order.put(three, first=True)
        assert await take(order, 4) == [three, ("other", "one"), one, two]

    run(scenario)


def test_forgotten_key_counts_as_new() -> None:
    one, two = ("clinic", "one"), ("clinic", "two")

    async def scenario(order: FairOrder) -> None:
        for key in (one, two):
            order.put(key)
        await take(order, 2)
        order.forget(two)
        for key in (one, two):
            order.put(key)
        assert await take(order, 2) == [two, one]

    run(scenario)


def test_get_waits_for_a_key() -> None:
    async def scenario(order: FairOrder) -> None:
        waiting = asyncio.create_task(order.get())
        await asyncio.sleep(0)
        assert not waiting.done()
        order.put(("clinic", "one"))
        assert await waiting == ("clinic", "one")

    run(scenario)
