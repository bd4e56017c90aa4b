"""Who is cancelled ends, whenever that comes: who ended but for its Lease would keep all others from leading."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tensafe_operator.runtime import leader_election as module
from tensafe_operator.runtime.leader_election import LeaderElection

MOMENTS = range(8)
"""So many turns of the event loop after the answer, the cancellation comes."""


class Server:
    """Answers a request for the Lease when it is told to, and all others at once."""

    def __init__(self) -> None:
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def get(self, *_: str) -> None:
        self.asked.set()
        await self.answer.wait()

    async def create(self, document: dict[str, Any]) -> None:
        self.answer.clear()
        self.asked.clear()


async def ends(task: asyncio.Future[Any]) -> bool:
    done, _ = await asyncio.wait([task], timeout=20)
    return bool(done)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_lease_is_let_go_however_near_the_cancellation_is_to_the_answer(
    monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.2)

    async def run() -> bool:
        server: Any = Server()
        lease = LeaderElection(server, "tensafe-system", "me")
        server.answer.set()
        await lease.acquire()
        keeping = asyncio.ensure_future(lease.keep())
        await server.asked.wait()
        server.answer.set()
        for _ in range(moment):
            await asyncio.sleep(0)
        keeping.cancel()
        return await ends(keeping)

    assert asyncio.run(run())
