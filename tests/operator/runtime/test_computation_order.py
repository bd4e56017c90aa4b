"""Long computations: namespaces take turns, and so do the groups of one namespace's jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tensafe_operator.runtime.computation_order import ComputationOrder
from tensafe_operator.runtime.objects import Key


def run(scenario: Callable[[ComputationOrder], Awaitable[None]]) -> None:
    async def within_limit() -> None:
        await asyncio.wait_for(scenario(ComputationOrder()), 10)

    asyncio.run(within_limit())


async def compute(order: ComputationOrder, count: int) -> list[str]:
    """The names of so many keys, one computed after the other."""
    names = []
    for _ in range(count):
        key = await order.get()
        names.append(key[1])
        order.done(key)
    return names


def test_namespace_has_its_next_turn_when_its_key_is_done() -> None:
    async def scenario(order: ComputationOrder) -> None:
        for name in ("a", "b", "c"):
            order.put(("busy", name), "new")
        order.put(("clinic", "one"), "new")
        assert [await order.get(), await order.get()] == [("busy", "a"), ("clinic", "one")]
        order.put(("clinic", "two"), "new")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(order.get(), 0.01)
        order.done(("clinic", "one"))
        assert await order.get() == ("clinic", "two")
        order.done(("busy", "a"))
        assert await order.get() == ("busy", "b")

    run(scenario)


def test_groups_of_a_namespace_take_turns() -> None:
    async def scenario(order: ComputationOrder) -> None:
        for number in range(4):
            order.put(("lab", f"ended-{number}"), "ended")
        order.put(("lab", "begun-0"), "begun")
        order.put(("lab", "begun-1"), "begun")
        order.put(("lab", "new"), "new")
        first = ["ended-0", "begun-0", "new", "ended-1", "begun-1", "ended-2", "ended-3"]
        assert await compute(order, 7) == first

    run(scenario)


@pytest.mark.parametrize("busy", ["new", "begun", "ended"])
def test_group_whose_keys_come_back_for_ever_does_not_keep_another_one_waiting(busy: str) -> None:
    async def scenario(order: ComputationOrder) -> None:
        keys: list[Key] = [("lab", f"busy-{number}") for number in range(3)]
        for key in keys:
            order.put(key, busy)
        names = []
        for turn in range(9):
            if turn == 3:
                order.put(("lab", "other"), "another")
            key = await order.get()
            names.append(key[1])
            order.done(key)
            if key in keys:
                order.put(key, busy)
        assert names.index("other") <= 4

    run(scenario)


def test_key_that_is_put_while_its_namespace_computes_waits_for_it() -> None:
    async def scenario(order: ComputationOrder) -> None:
        order.put(("lab", "one"), "new")
        taken = await order.get()
        waiting = asyncio.create_task(order.get())
        order.put(("lab", "two"), "ended")
        await asyncio.sleep(0)
        assert not waiting.done()
        order.done(taken)
        assert await waiting == ("lab", "two")

    run(scenario)
