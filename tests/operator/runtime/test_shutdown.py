"""The first task that ends is the end of all, and it comes: swallowed cancellations and slow threads do not hold it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

import pytest

from e2e.platform.fixtures.polling import TIMEOUT_SECONDS, Timer
from tensafe_operator.runtime import shutdown as module
from tensafe_operator.runtime.shutdown import TaskSupervisor


async def for_ever() -> None:
    await asyncio.Event().wait()


async def deaf(times: int) -> None:
    """Swallows so many cancellations."""
    for _ in range(times):
        with contextlib.suppress(asyncio.CancelledError):
            await for_ever()
    await for_ever()


def test_who_swallows_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.05)

    async def run() -> list[bool]:
        tasks = TaskSupervisor()
        started = [tasks.start(f"deaf to {times}", deaf(times)) for times in range(4)]
        await asyncio.sleep(0)
        await tasks.end()
        return [task.cancelled() for task in started]

    assert asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS)) == [True] * 4


def test_what_is_done_while_all_else_goes_on_is_known_from_what_is_cut_short() -> None:
    async def answer() -> int:
        return 3

    async def wrong() -> int:
        raise KeyError("metadata")

    async def run() -> None:
        tasks = TaskSupervisor()
        other = tasks.start("other", asyncio.sleep(0.2))
        done = await tasks.done("answering", answer())
        assert done is not None and done.result() == 3
        assert tasks.ended() == set(), "it is no end"
        assert await tasks.done("waiting", for_ever()) is None, "all else has ended"
        assert tasks.ended() == {other}
        assert await tasks.done("failing", wrong()) is None
        await tasks.end()

    asyncio.run(run())


STUCK = """
import asyncio, time
from tensafe_operator.runtime import shutdown as module

module.END_SECONDS = 1.0
ending = module.Shutdown()

def plan():
    time.sleep(600)

async def operate():
    tasks = module.TaskSupervisor()
    tasks.start("planning", asyncio.to_thread(plan))
    await asyncio.sleep(0.1)
    ending.begin()
    await tasks.end()

print("begins", flush=True)
asyncio.run(operate())
print("goes on", flush=True)
"""


def test_a_thread_that_goes_on_is_cut_off() -> None:
    timer = Timer()
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert (done.returncode, done.stdout) == (1, "begins\n")
    assert "has not ended within 1 s: it is cut off" in done.stderr
    assert timer.elapsed_with_cpu < 60
