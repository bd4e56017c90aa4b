"""The accountant computes the figures of jobs beside the queue: each once, and no job waits for the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from tensafe_operator.accountant import THREADS, Accountant
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
class Failing:
    def compute(self) -> int:
        raise ArithmeticError("no finite bound")


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


def test_slow_figures_of_one_job_leave_the_event_loop_free() -> None:
    async def scenario(accountant: Accountant, touched: asyncio.Queue[Key]) -> None:
        accountant.ask(JOB, [Slow(number) for number in range(THREADS - 1)])
        accountant.ask(OTHER, [Square(2)])
        assert await touched.get() == OTHER

    drive(scenario)


def test_failure_is_reported_once_and_the_figure_is_asked_for_again() -> None:
    async def scenario(accountant: Accountant, touched: asyncio.Queue[Key]) -> None:
        for _ in range(2):
            accountant.ask(JOB, [Failing()])
            await touched.get()
            (error,) = accountant.known(JOB).values()
            assert isinstance(error, ArithmeticError)
            assert accountant.known(JOB) == {}

    drive(scenario)


def test_figure_of_a_job_that_was_deleted_meanwhile_is_dropped() -> None:
    async def scenario(accountant: Accountant, touched: asyncio.Queue[Key]) -> None:
        accountant.ask(JOB, [Slow(1)])
        accountant.forget(JOB)
        released.set()
        accountant.ask(OTHER, [Square(2)])
        assert await touched.get() == OTHER
        assert touched.empty()

    drive(scenario)
