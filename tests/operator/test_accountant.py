"""The accountant computes the figures of jobs beside the queue: each once, and no job waits for the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tensafe_operator.accountant import Accountant
from tensafe_operator.decision.figures import Epsilon
from tensafe_operator.runtime.objects import Key

JOB, OTHER = ("clinic", "triage"), ("clinic", "other")
computed: list[int] = []
released = threading.Event()


@dataclass(frozen=True)
class Square:
    number: int

    def compute(self) -> int:
        computed.append(self.number)
        return self.number**2


@dataclass(frozen=True)
class Slow:
    number: int

    def compute(self) -> int:
        assert released.wait(10)
        return self.number


@dataclass(frozen=True)
class Flaky:
    """Cannot be computed the first two times."""

    def compute(self) -> int:
        computed.append(1)
        if len(computed) < 3:
            raise ArithmeticError("no finite bound")
        return 1


class Claimed:
    """The part of a claim that an ε needs."""

    def epsilon(self, steps: int) -> float:
        return steps / 10


Scenario = Callable[[Accountant, "asyncio.Queue[Key]"], Awaitable[None]]


@pytest.fixture(autouse=True)
def nothing_computed() -> None:
    computed.clear()
    released.clear()


def drive(scenario: Scenario) -> None:
    async def run() -> None:
        touched: asyncio.Queue[Key] = asyncio.Queue()
        accountant = Accountant(touched.put_nowait)
        computing = asyncio.create_task(accountant.run())
        try:
            await asyncio.wait_for(scenario(accountant, touched), 10)
        finally:
            released.set()
            computing.cancel()
            await asyncio.gather(computing, return_exceptions=True)

    asyncio.run(run())


def test_job_is_touched_once_its_figure_is_there() -> None:
    async def scenario(accountant: Accountant, touched: asyncio.Queue[Key]) -> None:
        assert accountant.known(JOB) == {}
        accountant.ask(JOB, [Square(3)])
        assert await touched.get() == JOB
        assert accountant.known(JOB) == {Square(3): 9}

    drive(scenario)


def test_figure_is_computed_once_however_often_it_is_asked_for() -> None:
    async def scenario(accountant: Accountant, touched: asyncio.Queue[Key]) -> None:
        for _ in range(3):
            accountant.ask(JOB, [Square(3)])
        await touched.get()
        accountant.ask(JOB, [Square(3), Square(4)])
        await touched.get()
        assert computed == [3, 4]

    drive(scenario)


def test_figures_that_no_decision_asks_for_any_more_are_forgotten() -> None:
    async def scenario(accountant: Accountant, touched: asyncio.Queue[Key]) -> None:
        accountant.ask(JOB, [Square(3)])
        await touched.get()
        accountant.ask(JOB, [])
        assert accountant.known(JOB) == {}

    drive(scenario)


def test_epsilon_of_a_job_that_trains_waits_for_no_new_job() -> None:
    claim: Any = Claimed()

    async def scenario(accountant: Accountant, touched: asyncio.Queue[Key]) -> None:
        for number in range(5):
            accountant.ask(("clinic", f"new-{number}"), [Slow(number)])
        accountant.ask(JOB, [Epsilon(claim, 2)])
        assert await touched.get() == JOB
        assert accountant.known(JOB) == {Epsilon(claim, 2): 0.2}

    drive(scenario)


def test_figures_that_are_asked_for_together_touch_the_job_once() -> None:
    async def scenario(accountant: Accountant, touched: asyncio.Queue[Key]) -> None:
        accountant.ask(JOB, [Square(1), Square(2), Square(1)])
        accountant.ask(OTHER, [Square(3)])
        assert [await touched.get(), await touched.get()] == [JOB, OTHER]
        assert accountant.known(JOB) == {Square(1): 1, Square(2): 4}

    drive(scenario)


def test_figure_that_fails_is_computed_again_and_touches_the_job_once_and_when_it_succeeds() -> None:
    async def scenario(accountant: Accountant, touched: asyncio.Queue[Key]) -> None:
        accountant.ask(JOB, [Flaky()])
        assert await touched.get() == JOB
        while touched.empty():
            (error,) = accountant.known(JOB).values()  # as each repetition of the decision
            assert isinstance(error, ArithmeticError)
            await asyncio.sleep(0.001)
        assert accountant.known(JOB) == {Flaky(): 1}
        assert len(computed) == 3 and touched.qsize() == 1

    drive(scenario)


def test_end_does_not_wait_for_a_computation() -> None:
    async def run() -> None:
        accountant = Accountant(lambda key: None)
        computing = asyncio.create_task(accountant.run())
        accountant.ask(JOB, [Slow(1)])
        await asyncio.sleep(0)
        computing.cancel()
        await asyncio.wait([computing], timeout=5)
        assert computing.done() and not released.is_set()

    try:
        asyncio.run(asyncio.wait_for(run(), 10))
    finally:
        released.set()


def test_figure_of_a_job_that_was_deleted_meanwhile_is_dropped() -> None:
    async def scenario(accountant: Accountant, touched: asyncio.Queue[Key]) -> None:
        accountant.ask(JOB, [Slow(1)])
        accountant.forget(JOB)
        released.set()
        accountant.ask(OTHER, [Square(2)])
        assert await touched.get() == OTHER
        assert touched.empty()

    drive(scenario)
