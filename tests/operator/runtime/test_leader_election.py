"""A cancelled election ends, whenever the cancellation arrives. A process that has ended except for renewing its Lease
would prevent every other process from leading. The durations of the election are those that it was given.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tensafe_operator.runtime import leader_election
from tensafe_operator.runtime.leader_election import LeaderElection
from tensafe_operator.runtime.lease_durations import LeaseDurations

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
def test_cancelled_election_stops_renewing_however_near_the_answer_is(turns: int) -> None:
    async def run() -> bool:
        server: Any = Server()
        election = LeaderElection(server, "tensafe-system", "a-lease", "me", LeaseDurations(retry_period=0.2))
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


class LeaseStore:
    """Keeps one Lease, as the API server does."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self._version = 0

    async def get(self, *_: str) -> dict[str, Any] | None:
        return self.lease

    async def create(self, document: dict[str, Any]) -> None:
        self._version += 1
        metadata = {**document["metadata"], "resourceVersion": str(self._version)}
        self.lease = {**document, "metadata": metadata}

    replace = create


def test_leader_stops_before_another_process_may_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(leader_election, "_now", lambda: now)
    store: Any = LeaseStore()
    long = LeaseDurations(lease=60, renew_deadline=45, retry_period=5)
    leader = LeaderElection(store, "tensafe-system", "a-lease", "me", long)
    other = LeaderElection(store, "tensafe-system", "a-lease", "other")
    asyncio.run(leader.acquire())
    assert store.lease["spec"]["leaseDurationSeconds"] == 60
    assert not asyncio.run(other._try())
    now += 44
    assert leader.leading
    now += 2
    assert not leader.leading
    assert not asyncio.run(other._try()), "the duration in the Lease counts, not the shorter one of this process"
    now += 15
    assert asyncio.run(other._try())
