"""The first task that ends ends all others, even if tasks swallow cancellations or threads do not return."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

import pytest

from tensafe_operator.runtime import shutdown
from tensafe_operator.runtime.shutdown import TaskSupervisor
from tests.support.polling import TIMEOUT_SECONDS, Timer


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def swallow_cancellations(times: int) -> None:
    for _ in range(times):
        with contextlib.suppress(asyncio.CancelledError):
            await wait_for_ever()
    await wait_for_ever()


def test_task_that_swallows_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "AGAIN_SECONDS", 0.05)

    async def run() -> list[bool]:
        tasks = TaskSupervisor()
        started = [tasks.start(f"swallows {times}", swallow_cancellations(times)) for times in range(4)]
        await asyncio.sleep(0)
        await tasks.cancel_all()
        return [task.cancelled() for task in started]

    assert asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS)) == [True] * 4


def test_completed_task_is_distinguished_from_an_interrupted_or_failed_one() -> None:
    async def answer() -> int:
        return 3

    async def fail() -> int:
        raise KeyError("metadata")

    async def run() -> None:
        tasks = TaskSupervisor()
        other = tasks.start("other", asyncio.sleep(0.2))
        completed = await tasks.complete("answering", answer())
        assert completed is not None and completed.result() == 3
        assert tasks.ended() == set(), "a completed task does not end the others"
        assert await tasks.complete("waiting", wait_for_ever()) is None, "another task has ended first"
        assert tasks.ended() == {other}
        assert await tasks.complete("failing", fail()) is None
        await tasks.cancel_all()

    asyncio.run(run())


STUCK = """
import asyncio, time
from tensafe_operator.runtime import shutdown as module

module.END_SECONDS = 1.0
shutdown = module.Shutdown()

def compute():
    time.sleep(600)

async def operate():
    tasks = module.TaskSupervisor()
    tasks.start("computing", asyncio.to_thread(compute))
    await asyncio.sleep(0.1)
    shutdown.start_deadline()
    await tasks.cancel_all()

print("starts", flush=True)
asyncio.run(operate())
print("continues", flush=True)
"""


@pytest.mark.slow
def test_process_whose_thread_does_not_return_is_killed() -> None:
    timer = Timer()
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert (done.returncode, done.stdout) == (1, "starts\n")
    assert "has not ended within 1 s: it is killed" in done.stderr
    assert timer.elapsed_with_cpu < 60
