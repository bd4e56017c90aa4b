"""A cancelled election ends, whenever the cancellation arrives. A process that has ended except for renewing its Lease
would prevent every other process from leading.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tensafe_operator.runtime import leader_election
from tensafe_operator.runtime.leader_election import LeaderElection

TURNS = range(8)
"""Numbers of turns of the event loop between the answer and the cancellation."""


class Server:
    """Answers a read of the Lease when `answer` is set, and all other requests immediately."""

    def __init__(self) -> None:
        self.requested, self.answer = asyncio.Event(), asyncio.Event()

    async def get(self, *_: str) -> None:
        self.requested.set()
        await self.answer.wait()

    async def create(self, document: dict[str, Any]) -> None:
        self.answer.clear()
        self.requested.clear()


async def ends(task: asyncio.Future[Any]) -> bool:
    done, _ = await asyncio.wait([task], timeout=20)
    return bool(done)


@pytest.mark.parametrize("turns", TURNS)
def test_cancelled_election_stops_renewing_however_near_the_answer_is(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr(leader_election, "RETRY_SECONDS", 0.2)

    async def run() -> bool:
        server: Any = Server()
        election = LeaderElection(server, "tensafe-system", "a-lease", "me")
        server.answer.set()
        await election.acquire()
        keeping = asyncio.ensure_future(election.keep())
        await server.requested.wait()
        server.answer.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        keeping.cancel()
        return await ends(keeping)

    assert asyncio.run(run())
